"""Frames as they stand on the wire, and errors in the protocol's words."""
