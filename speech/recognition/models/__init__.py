"""Recognition models of transformers, in a process of their own."""
