"""Attention over the pages of the KV cache, with a backend for each kind of device."""
