"""Runs live translations: an engine decodes the source so far while it grows."""
