"""Sound and words: what recognises the one and what speaks the other. Knows no conversation and no client."""
