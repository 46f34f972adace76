"""Attention over the pages of the KV cache on a CUDA device."""
