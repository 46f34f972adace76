"""Midstream's Python client. It speaks the public protocol and imports no floor of the service."""

from midstream.client import Client, ClientError, Disconnected, NotConnected, Refused, Reply, connect

__all__ = ["Client", "ClientError", "Disconnected", "NotConnected", "Refused", "Reply", "connect"]
