"""Midstream's Python client. It speaks the public protocol and imports no floor of the service."""
