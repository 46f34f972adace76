"""A message as server-sent events, as the AI SDK reads them: a chunk is an event, and the last one is `[DONE]`."""

from __future__ import annotations

import asyncio

from connections.aisdk.chunk_encoder import ChunkEncoder
from connections.aisdk.chunks import Chunk, encode
from connections.api.event_transport import EventTransport
from connections.http.exchange import Exchange
from connections.protocol.frames import Frame

PROTOCOL = {"x-vercel-ai-ui-message-stream": "v1"}
"""The header by which clients know the protocol."""
_DONE = b"data: [DONE]\n\n"


class SseStream:
    """The events of one message. `over`: it has ended."""

    def __init__(self, encoder: ChunkEncoder) -> None:
        self.over = asyncio.Event()
        self._encoder = encoder

    def encode(self, frame: Frame) -> bytes:
        """Return the events of a frame."""
        if (chunk := self._encoder.delta(frame)) is not None:
            return b"data: %b\n\n" % chunk
        return self._events(self._encoder.encode(frame))

    def cut(self, why: str) -> bytes:
        """Return the last events when the server ends a message early."""
        return self._events(self._encoder.fail(why))

    def _events(self, chunks: list[Chunk]) -> bytes:
        events = b"".join(b"data: %b\n\n" % encode(chunk) for chunk in chunks)
        if not self._encoder.is_over or self.over.is_set():
            return events
        self.over.set()
        return events + _DONE


class SseTransport(EventTransport):
    """An answer that says why it ends if its message does not."""

    def __init__(self, exchange: Exchange, stream: SseStream) -> None:
        super().__init__(exchange, b"")
        self._stream = stream

    async def drained(self) -> None:
        """Wait until the server has taken what waits."""
        while self._buffer:
            self._drained.clear()
            await self._drained.wait()

    async def close(self, code: int, reason: str) -> None:
        """End the answer."""
        self.write(self._stream.cut(reason))
        await super().close(code, reason)
