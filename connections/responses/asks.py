"""The messages of clients on the WebSocket, and how they are read. Pure."""

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
    """Asks for a response. `stream_id`: its lane."""

    request: Creation
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries."""
        return self.stream_id


class Stop(msgspec.Struct, frozen=True):
    """Stops a response: the named one, or that of a lane."""

    response_id: str | None
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries."""
        return self.stream_id


class Ill(msgspec.Struct, frozen=True):
    """A JSON message that is not a valid request."""

    refused: Refused
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries."""
        return self.stream_id


Asks = Create | Stop | Ill


class _Head(msgspec.Struct, frozen=True):
    type: str
    stream_id: str | None = None
    response_id: str | None = None


_head = msgspec.json.Decoder(_Head)


def decode(message: str | bytes) -> Asks:
    """Return one message. Raises BadFrame if it is none."""
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
