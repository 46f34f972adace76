"""Spoken turns: what is said becomes a message, and its reply is played until it is heard or interrupted."""
