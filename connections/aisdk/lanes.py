"""The requests of one socket, a lane for each message: text to frames, and events to lines of text. Pure."""

from __future__ import annotations

import msgspec

from connections.aisdk.chunks import Chunk
from connections.aisdk.frames import (
    Asks,
    Begin,
    End,
    NoActive,
    Piece,
    Refused,
    ServerChatFrame,
)
from connections.aisdk.telling import End as Ended
from connections.aisdk.telling import Telling
from connections.wire import codec
from connections.wire.errors import BadParams
from connections.wire.frames import Error, Frame, ServerFrame
from sessions.conversation.paging import HistoryPage
from sessions.errors import Overloaded
from sessions.events import Event

MAX_LANES = 16
"""Messages that one socket may receive at a time."""
_decoder: msgspec.json.Decoder[Asks] = msgspec.json.Decoder(Asks)
_encode = msgspec.json.Encoder().encode


def decode(message: str | bytes) -> Asks:
    """Return one frame. Raises BadFrame, which names the wrong field."""
    return codec.read(_decoder, message)


class Lane:
    """One request. `is_resumed`: it asked for a message that was being written."""

    def __init__(self, request_id: str, chat_id: str, *, is_resumed: bool) -> None:
        self.chat_id = chat_id
        self.is_resumed = is_resumed
        self.telling = Telling(ref=request_id)
        self._request_id = request_id
        self._told = -1
        self._before = b'{"type":"chunk","requestId":%b,"sequence":' % _encode(request_id)

    def more(self, frame: Frame) -> bytes | None:
        """Return the line of a frame that only extends the open part; None: use `frames`."""
        if (chunk := self.telling.more(frame)) is None:
            return None
        self._told += 1
        return b'%b%d,"chunk":%b}' % (self._before, self._told, chunk)

    def frames(self, chunks: list[Chunk]) -> list[ServerChatFrame]:
        """Return the frames of chunks, with the end after the last one."""
        if self.telling.end is Ended.NOTHING:
            return [NoActive(request_id=self._request_id)]
        told: list[ServerChatFrame] = []
        for chunk in chunks:
            if self._told < 0:
                told.append(Begin(request_id=self._request_id))
            self._told += 1
            told.append(Piece(request_id=self._request_id, sequence=self._told, chunk=chunk))  # type: ignore[arg-type]  # each chunk is one of them
        return [*told, End(request_id=self._request_id)] if self.telling.is_over else told


class Lanes:
    """All lanes of one socket."""

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def open(self, request_id: str, chat_id: str, *, is_resumed: bool) -> Telling:
        """Open a lane. Raises BadParams, Overloaded."""
        if request_id in self._lanes:
            raise BadParams("was used before, by a request that has not ended.", field="requestId")
        if len(self._lanes) >= MAX_LANES:
            raise Overloaded(f"A socket has at most {MAX_LANES} replies at a time.")
        lane = self._lanes[request_id] = Lane(request_id, chat_id, is_resumed=is_resumed)
        return lane.telling

    def drop(self, request_id: str) -> Lane | None:
        """Send no more of a request; return its lane, if there is one."""
        return self._lanes.pop(request_id, None)

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        if isinstance(frame, Error):
            return b"\n".join(map(_encode, self._refused(frame)))
        told: list[bytes] = []
        for request_id, lane in list(self._lanes.items()):
            if not _is_for(frame, request_id, lane):
                continue
            if (line := lane.more(frame)) is not None:
                told.append(line)
                continue
            told += map(_encode, lane.frames(lane.telling.tell(frame)))
            if lane.telling.is_over:
                del self._lanes[request_id]
        return b"\n".join(told)

    def _refused(self, error: Error) -> list[ServerChatFrame]:
        lane = self._lanes.pop(error.ref or "", None)
        if lane is not None and lane.telling.is_told_of:
            return lane.frames(lane.telling.fail(error.message))
        if error.code == "not_found" and lane is not None and lane.is_resumed:
            return [NoActive(request_id=error.ref or "")]
        return [Refused(request_id=error.ref or "", error_text=error.message)]


def _is_for(frame: Frame, request_id: str, lane: Lane) -> bool:
    if isinstance(frame, HistoryPage | ServerFrame):
        return frame.ref == request_id
    return isinstance(frame, Event) and frame.conversation_id == lane.chat_id
