"""Talks to a server as many people do, and measures what they see: `midstream bench`."""
