"""Converts text to client events, and events of a conversation to lines, each one message to the client. Pure."""

from __future__ import annotations

import secrets

import msgspec

from connections.http.json_limits import check_json_limits
from connections.limits.constants import MAX_FRAME_BYTES
from connections.protocol import codec, frames
from connections.protocol.errors import BadFrame
from connections.protocol.frames import Frame
from connections.realtime.client_events import AnyClientEvent, ItemCreate, ResponseCancel
from connections.realtime.content_parts import has_images
from connections.realtime.event_encoder import RealtimeEventEncoder, turn_id_of
from sessions.events import Delta

_decoder: msgspec.json.Decoder[AnyClientEvent] = msgspec.json.Decoder(AnyClientEvent)
_encode = msgspec.json.Encoder().encode
_DELTA = b'{"type":"response.output_text.delta","event_id":'


_TOO_LARGE = f"Only an item with images, and without sound, may be larger than {MAX_FRAME_BYTES} bytes."


class RealtimeCodec:
    """The coding of one session. What stops a turn becomes a native frame, and so takes effect as early as there."""

    def __init__(self, encoder: RealtimeEventEncoder, *, conversation_id: str) -> None:
        self._encoder = encoder
        self._conversation_id = conversation_id
        self._event_ids = f"event_{secrets.token_hex(8)}"
        self._delta = b'%b"%b_' % (_DELTA, self._event_ids.encode())
        self._sent_count = 0

    def decode(self, message: str | bytes) -> AnyClientEvent | frames.Cancel:
        """Return one client event. Raises TooManyValues; BadFrame, which names the wrong field.

        A large one may only bring images: a session would keep all else, or have it wait.
        """
        is_large = _is_large(message)
        if is_large:
            check_json_limits(message if isinstance(message, bytes) else message.encode())
        event = codec.read(_decoder, message)
        if is_large and not (isinstance(event, ItemCreate) and has_images(event.item, alone=True)):
            raise BadFrame(_TOO_LARGE, ref=event.ref)
        if not isinstance(event, ResponseCancel):
            return event
        turn_id = None if event.response_id is None else turn_id_of(event.response_id)
        return frames.Cancel(
            ref=event.event_id,
            turn_id=turn_id,
            conversation_id=self._conversation_id if turn_id is None else None,
        )

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        if isinstance(frame, Delta) and (rest := self._encoder.delta(frame)) is not None:
            self._sent_count += 1
            return b'%b%d"%b' % (self._delta, self._sent_count, rest)
        return b"\n".join(self._line(event) for event in self._encoder.encode(frame))

    def _line(self, event: msgspec.Struct) -> bytes:
        self._sent_count += 1
        return _encode(msgspec.structs.replace(event, event_id=f"{self._event_ids}_{self._sent_count}"))


def _is_large(message: str | bytes) -> bool:
    if isinstance(message, bytes) or message.isascii():
        return len(message) > MAX_FRAME_BYTES
    return len(message.encode()) > MAX_FRAME_BYTES
