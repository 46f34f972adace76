"""A reply's text into pieces: text, reasoning, calls. Pure: knows formats, and neither models nor requests."""
