"""Decodes recordings that are not WAV files, each in a process of its own."""
