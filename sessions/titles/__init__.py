"""Titles of conversations: the first words of the first message, then what the model makes of the first exchange."""
