"""Midstream's Python client. It speaks the public protocol and imports no part of the service."""

from midstream.calls import Call, CallState
from midstream.client import Client, Reconnecting, connect
from midstream.errors import ClientError, Disconnected, NotConnected, Refused
from midstream.interpretation import Interpretation
from midstream.reply import Reasoning, Reply, Status
from midstream.requests import Found, Page
from midstream.spoken import Connection, Heard, Mark, Sound, Speech, SpokenConversation, SpokenReply

__all__ = [
    "Call",
    "CallState",
    "Client",
    "ClientError",
    "Connection",
    "Disconnected",
    "Found",
    "Heard",
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
    "connect",
]
