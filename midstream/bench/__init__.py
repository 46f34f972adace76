"""Simulates many users of a server, and measures what they see: `midstream bench`."""
