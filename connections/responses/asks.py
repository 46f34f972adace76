"""What clients say on the WebSocket, and how their messages are read. Pure."""

from __future__ import annotations

import msgspec

from connections.openai.problems import Problem, invalid
from connections.responses.requests.asking import creation
from connections.responses.requests.fields import Creation
from connections.wire import codec
from connections.wire.errors import BadFrame
from sessions.errors import Refused

MAX_STREAM_ID = 128
_CANCELS = ("midstream:response.cancel", "response.cancel")


class Create(msgspec.Struct, frozen=True):
    """Asks for a response. `stream_id`: the lane that it is written in."""

    request: Creation
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries back."""
        return self.stream_id


class Stop(msgspec.Struct, frozen=True):
    """Stops a response: the one that is named, or that of a lane."""

    response_id: str | None
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries back."""
        return self.stream_id


class Ill(msgspec.Struct, frozen=True):
    """A message that is JSON and asks for what can't be had."""

    refused: Refused
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries back."""
        return self.stream_id


Asks = Create | Stop | Ill


class _Head(msgspec.Struct, frozen=True):
    type: str
    stream_id: str | None = None
    response_id: str | None = None


_head = msgspec.json.Decoder(_Head)


def decode(message: str | bytes) -> Asks:
    """One message. Raises BadFrame where it is none."""
    head = codec.read(_head, message)
    if head.stream_id is not None and not 0 < len(head.stream_id) <= MAX_STREAM_ID:
        raise BadFrame(f"`stream_id` must have 1 to {MAX_STREAM_ID} characters.")
    if head.type in _CANCELS:
        return Stop(head.response_id, head.stream_id)
    if head.type != "response.create" or isinstance(message, bytes):
        return Ill(_unknown(), head.stream_id)
    try:
        return Create(creation(message.encode()), head.stream_id)
    except Refused as refused:
        return Ill(refused, head.stream_id)


def _unknown() -> Problem:
    why = f"This server takes events of the types response.create and {_CANCELS[0]}."
    return invalid("type", why, code="unsupported_event")
