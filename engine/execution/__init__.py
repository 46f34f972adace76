"""Runs one step: spans of tokens go through the model, and their next tokens come out."""
