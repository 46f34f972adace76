"""Responses that are kept, as turns of conversations."""
