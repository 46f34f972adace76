"""Limits of clients and keys, counted over all replicas."""
