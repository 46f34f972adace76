"""The messages of clients on the WebSocket, and how they are read. Pure."""

from __future__ import annotations

import msgspec

from connections.api.errors import Problem, invalid
from connections.protocol import codec
from connections.protocol.errors import BadFrame
from connections.responses.requests.models import Creation
from connections.responses.requests.parser import parse_response_request
from sessions.errors import Refused

MAX_STREAM_ID = 128
_CANCELS = ("midstream:response.cancel", "response.cancel")


class CreateResponse(msgspec.Struct, frozen=True):
    """Asks for a response. `stream_id`: the stream that it belongs to."""

    request: Creation
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries."""
        return self.stream_id


class CancelResponse(msgspec.Struct, frozen=True):
    """Stops a response: the named one, or that of a stream."""

    response_id: str | None
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries."""
        return self.stream_id


class InvalidMessage(msgspec.Struct, frozen=True):
    """A JSON message that is not a valid request."""

    refused: Refused
    stream_id: str | None

    @property
    def ref(self) -> str | None:
        """What an error about it carries."""
        return self.stream_id


ClientEvent = CreateResponse | CancelResponse | InvalidMessage


class _EventHeader(msgspec.Struct, frozen=True):
    type: str
    stream_id: str | None = None
    response_id: str | None = None


_head = msgspec.json.Decoder(_EventHeader)


def decode(message: str | bytes) -> ClientEvent:
    """Return one message. Raises BadFrame if it is none."""
    head = codec.read(_head, message)
    if head.stream_id is not None and not 0 < len(head.stream_id) <= MAX_STREAM_ID:
        raise BadFrame(f"`stream_id` must have 1 to {MAX_STREAM_ID} characters.")
    if head.type in _CANCELS:
        return CancelResponse(head.response_id, head.stream_id)
    if head.type != "response.create" or isinstance(message, bytes):
        return InvalidMessage(_unknown_event(), head.stream_id)
    try:
        return CreateResponse(parse_response_request(message.encode()), head.stream_id)
    except Refused as refused:
        return InvalidMessage(refused, head.stream_id)


def _unknown_event() -> Problem:
    why = f"This server takes events of the types response.create and {_CANCELS[0]}."
    return invalid("type", why, code="unsupported_event")
