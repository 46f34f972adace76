"""The bundled demo model: its dialogues, its training, its evaluation and its checkpoint."""
