"""Midstream's Python client. It speaks the public protocol and imports no floor of the service."""

from midstream.client import Client, Reconnecting, connect
from midstream.errors import ClientError, Disconnected, NotConnected, Refused
from midstream.reply import Reply, Status

__all__ = [
    "Client",
    "ClientError",
    "Disconnected",
    "NotConnected",
    "Reconnecting",
    "Refused",
    "Reply",
    "Status",
    "connect",
]
