"""Reads a checkpoint, tries it and makes it ready, or refuses it with the reason."""
