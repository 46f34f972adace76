"""Speech synthesis models of transformers, in a process of their own."""
