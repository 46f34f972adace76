"""Prompts are made of messages in a process of their own, fairly between clients."""
