"""Stored responses, as turns of conversations."""
