"""Models of transformers that listen while somebody speaks."""
