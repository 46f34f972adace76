"""The next token of each reply, chosen from its logits."""
