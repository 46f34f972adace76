"""Midstream's Python client. It speaks the public protocol and imports no floor of the service."""

from midstream.client import Client, ClientError, Disconnected, NotConnected, Refused, Reply, Status, connect

__all__ = ["Client", "ClientError", "Disconnected", "NotConnected", "Refused", "Reply", "Status", "connect"]
