"""Models of transformers that recognise, in a process of their own."""
