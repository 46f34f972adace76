"""The terminal client. It uses the public client alone; `import midstream` imports nothing of it."""
