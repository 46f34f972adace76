"""Models of transformers that speak, in a process of their own."""
