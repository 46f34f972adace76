"""Converts text to client events, and events of a conversation to lines, each one message to the client. Pure."""

from __future__ import annotations

import secrets

import msgspec

from connections.translations.events import Asks
from connections.translations.telling import Telling
from connections.wire import codec
from connections.wire.frames import Frame

_decoder: msgspec.json.Decoder[Asks] = msgspec.json.Decoder(Asks)
_encode = msgspec.json.Encoder().encode


def decode(message: str | bytes) -> Asks:
    """Return one client event. Raises BadFrame, which names the wrong field."""
    return codec.read(_decoder, message)


class Coding:
    """The coding of one session."""

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self._event_ids = f"event_{secrets.token_hex(8)}"
        self._told = 0

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        return b"\n".join(self._line(event) for event in self._telling.tell(frame))

    def _line(self, event: msgspec.Struct) -> bytes:
        self._told += 1
        return _encode(msgspec.structs.replace(event, event_id=f"{self._event_ids}_{self._told}"))
