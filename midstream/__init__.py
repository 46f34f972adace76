"""Midstream's Python client. It speaks the public protocol and imports no part of the service."""

from midstream.client import Client, Found, Page, Reconnecting, connect
from midstream.reply import Call, CallState, Interpretation, Reasoning, Reply, Status
from midstream.server_connection import ClientError, Disconnected, NotConnected, Refused

__all__ = [
    "Call",
    "CallState",
    "Client",
    "ClientError",
    "Disconnected",
    "Found",
    "Interpretation",
    "NotConnected",
    "Page",
    "Reasoning",
    "Reconnecting",
    "Refused",
    "Reply",
    "Status",
    "connect",
]
