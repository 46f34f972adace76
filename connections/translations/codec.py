"""Converts text to client events, and events of a conversation to lines, each one message to the client. Pure."""

from __future__ import annotations

import secrets

import msgspec

from connections.protocol import codec
from connections.protocol.frames import Frame
from connections.translations.event_encoder import TranslationEventEncoder
from connections.translations.events import AnyClientEvent

_decoder: msgspec.json.Decoder[AnyClientEvent] = msgspec.json.Decoder(AnyClientEvent)
_encode = msgspec.json.Encoder().encode


def decode(message: str | bytes) -> AnyClientEvent:
    """Return one client event. Raises BadFrame, which names the wrong field."""
    return codec.read(_decoder, message)


class TranslationCodec:
    """The coding of one session."""

    def __init__(self, encoder: TranslationEventEncoder) -> None:
        self._encoder = encoder
        self._event_ids = f"event_{secrets.token_hex(8)}"
        self._sent_count = 0

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        return b"\n".join(self._line(event) for event in self._encoder.encode(frame))

    def _line(self, event: msgspec.Struct) -> bytes:
        self._sent_count += 1
        return _encode(msgspec.structs.replace(event, event_id=f"{self._event_ids}_{self._sent_count}"))
