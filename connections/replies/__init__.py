"""Shared parts of endpoints whose requests have one reply each: the client, the turn, and its pieces as they come."""
