"""Attention over the cache, on each kind of device."""
