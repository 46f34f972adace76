"""Models of transformers that recognize during speech."""
