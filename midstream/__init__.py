"""Midstream's Python client. It speaks the public protocol and imports no part of the service."""

from midstream.client import Client, Found, Page, Reconnecting, connect
from midstream.reply import Call, CallState, Interpretation, Reasoning, Reply, Status
from midstream.server_connection import ClientError, Disconnected, NotConnected, Refused
from midstream.spoken import Connection, Mark, Sound, Speech, SpokenConversation, SpokenReply, Transcript

__all__ = [
    "Call",
    "CallState",
    "Client",
    "ClientError",
    "Connection",
    "Disconnected",
    "Found",
    "Interpretation",
    "Mark",
    "NotConnected",
    "Page",
    "Reasoning",
    "Reconnecting",
    "Refused",
    "Reply",
    "Sound",
    "Speech",
    "SpokenConversation",
    "SpokenReply",
    "Status",
    "Transcript",
    "connect",
]
