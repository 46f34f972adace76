"""Parses a reply's text into pieces: text, reasoning, calls. Pure: knows formats, but neither models nor requests."""
