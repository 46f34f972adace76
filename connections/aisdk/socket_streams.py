"""The requests of one socket, a stream for each message: text to frames, and events to lines of text. Pure."""

from __future__ import annotations

import msgspec

from connections.aisdk.chunk_encoder import ChunkEncoder
from connections.aisdk.chunk_encoder import StreamEnd as Ended
from connections.aisdk.chunks import Chunk
from connections.aisdk.frames import (
    ChunkFrame,
    ClientFrame,
    EndFrame,
    NoActiveFrame,
    Refused,
    ServerChatFrame,
    StartFrame,
)
from connections.protocol import codec
from connections.protocol.errors import BadParams
from connections.protocol.frames import Error, Frame, ServerFrame
from sessions.conversation.history_page import HistoryPage
from sessions.errors import Overloaded
from sessions.events import Event

MAX_STREAMS = 16
"""Messages that one socket may receive at a time."""
_decoder: msgspec.json.Decoder[ClientFrame] = msgspec.json.Decoder(ClientFrame)
_encode = msgspec.json.Encoder().encode


def decode(message: str | bytes) -> ClientFrame:
    """Return one frame. Raises BadFrame, which names the wrong field."""
    return codec.read(_decoder, message)


class SocketStream:
    """One request. `is_resumed`: it asked for a message that was being written."""

    def __init__(self, request_id: str, chat_id: str, *, is_resumed: bool) -> None:
        self.chat_id = chat_id
        self.is_resumed = is_resumed
        self.encoder = ChunkEncoder(ref=request_id)
        self._request_id = request_id
        self._sequence = -1
        self._before = b'{"type":"chunk","requestId":%b,"sequence":' % _encode(request_id)

    def delta(self, frame: Frame) -> bytes | None:
        """Return the line of a frame that only extends the open part; None: use `frames`."""
        if (chunk := self.encoder.delta(frame)) is None:
            return None
        self._sequence += 1
        return b'%b%d,"chunk":%b}' % (self._before, self._sequence, chunk)

    def frames(self, chunks: list[Chunk]) -> list[ServerChatFrame]:
        """Return the frames of chunks, with the end after the last one."""
        if self.encoder.end is Ended.NOTHING:
            return [NoActiveFrame(request_id=self._request_id)]
        sent: list[ServerChatFrame] = []
        for chunk in chunks:
            if self._sequence < 0:
                sent.append(StartFrame(request_id=self._request_id))
            self._sequence += 1
            sent.append(ChunkFrame(request_id=self._request_id, sequence=self._sequence, chunk=chunk))  # type: ignore[arg-type]  # each chunk is one of them
        return [*sent, EndFrame(request_id=self._request_id)] if self.encoder.is_over else sent


class SocketStreams:
    """All streams of one socket."""

    def __init__(self) -> None:
        self._streams: dict[str, SocketStream] = {}

    def open(self, request_id: str, chat_id: str, *, is_resumed: bool) -> ChunkEncoder:
        """Open a stream. Raises BadParams, Overloaded."""
        if request_id in self._streams:
            raise BadParams("was used before, by a request that has not ended.", field="requestId")
        if len(self._streams) >= MAX_STREAMS:
            raise Overloaded(f"A socket has at most {MAX_STREAMS} replies at a time.")
        stream = self._streams[request_id] = SocketStream(request_id, chat_id, is_resumed=is_resumed)
        return stream.encoder

    def drop(self, request_id: str) -> SocketStream | None:
        """Send no more of a request; return its stream, if there is one."""
        return self._streams.pop(request_id, None)

    def encode(self, frame: Frame) -> bytes:
        """Return the lines of a frame: none, one or several. JSON contains no line breaks."""
        if isinstance(frame, Error):
            return b"\n".join(map(_encode, self._refused(frame)))
        sent: list[bytes] = []
        for request_id, stream in list(self._streams.items()):
            if not _is_for(frame, request_id, stream):
                continue
            if (line := stream.delta(frame)) is not None:
                sent.append(line)
                continue
            sent += map(_encode, stream.frames(stream.encoder.encode(frame)))
            if stream.encoder.is_over:
                del self._streams[request_id]
        return b"\n".join(sent)

    def _refused(self, error: Error) -> list[ServerChatFrame]:
        stream = self._streams.pop(error.ref or "", None)
        if stream is not None and stream.encoder.has_started:
            return stream.frames(stream.encoder.fail(error.message))
        if error.code == "not_found" and stream is not None and stream.is_resumed:
            return [NoActiveFrame(request_id=error.ref or "")]
        return [Refused(request_id=error.ref or "", error_text=error.message)]


def _is_for(frame: Frame, request_id: str, stream: SocketStream) -> bool:
    if isinstance(frame, HistoryPage | ServerFrame):
        return frame.ref == request_id
    return isinstance(frame, Event) and frame.conversation_id == stream.chat_id
