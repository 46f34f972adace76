"""Texts as vectors, for OpenAI's clients."""
