"""Spoken turns: speech becomes a message, and its reply is played until it was heard or is interrupted."""
