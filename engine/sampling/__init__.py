"""Chooses the next token of each reply from its logits."""
