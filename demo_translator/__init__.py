"""The bundled translator: English ⇄ Chinese over what the demo model talks about; its language, training and checkpoint."""
