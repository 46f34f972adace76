"""Shared parts of doors whose requests have one reply each: the client, the turn, and its pieces as they come."""
