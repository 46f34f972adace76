"""Titles of conversations: first the first words of the first message, then the model's title for the first exchange."""
