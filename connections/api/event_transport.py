"""An answer without an end, as a connection's `Transport`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from connections.connection import Disconnected
from connections.http import Exchange

WAITING_BYTES = 32 * 1024
PIECE_BYTES = 16 * 1024
"""Bytes for the server at once: it keeps what its peer does not take. A whole page would be kept twice for as long."""
BEAT_S = 15.0
"""Most proxies close a connection that is silent for a minute."""
CLOSE_S = 2.0
HEARTBEAT = b":\n\n"
"""A comment, which shows that the connection is alive."""


class EventTransport:
    """Written events wait here until the server takes them, up to a limit. `send` must be running."""

    def __init__(self, exchange: Exchange, first: bytes) -> None:
        self._exchange = exchange
        self._buffer = bytearray(first)
        self._written = asyncio.Event()
        self._drained = asyncio.Event()
        self._is_idle = True
        self._written.set()

    async def begin(self, request_id: str, more: Mapping[str, str] | None = None) -> None:
        """Begin the answer, with the events that waited for that: both go in one. `more`: headers."""
        await self._exchange.begin_events(request_id, more)
        if (piece := bytes(self._buffer[:PIECE_BYTES])) and self._exchange.write_nowait(piece):
            del self._buffer[: len(piece)]

    async def receive(self) -> str | bytes:
        """Wait until the reader has left: it can't send anything. Raises Disconnected then."""
        await self._exchange.left()
        raise Disconnected

    def is_writable(self) -> bool:
        """Whether more may be written."""
        return len(self._buffer) < WAITING_BYTES

    async def writable(self) -> None:
        """Wait until the server has taken what waits."""
        while not self.is_writable():
            self._drained.clear()
            await self._drained.wait()

    def write(self, text: bytes) -> None:
        """Send events, at once if nothing waits before them and the peer reads."""
        self._is_idle = False
        if not text or (not self._buffer and self._exchange.write_nowait(text)):
            return
        self._buffer += text
        self._written.set()

    def write_binary(self, message: bytes) -> None:
        """Drop it: readers of events get no sound."""

    def charge(self) -> None:
        """Do nothing: a reader sends no requests."""

    def request(self) -> AbstractContextManager[None]:
        """Return nothing to note: a reader sends no requests."""
        return nullcontext()

    async def send(self) -> None:
        """Give the server what waits, as fast as the peer reads, and a sign of life in pauses, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._written.wait()
            except TimeoutError:
                if self._is_idle:
                    # Keep what was written in the same turn of the loop.
                    self._buffer = self._buffer or bytearray(HEARTBEAT)
            self._is_idle = True
            self._written.clear()
            while self._buffer:
                await self._send_piece()

    async def _send_piece(self) -> None:
        """Send one piece. It stays here until the server has taken it, so a cancellation loses nothing."""
        piece = bytes(self._buffer[:PIECE_BYTES])
        await self._exchange.write(piece)
        del self._buffer[: len(piece)]
        self._drained.set()

    async def close(self, code: int, reason: str) -> None:  # noqa: ARG002 - an event stream can't say why
        """End the answer: readers reconnect."""
        try:
            async with asyncio.timeout(CLOSE_S):
                while self._buffer:
                    await self._send_piece()
                await self._exchange.write(b"", more=False)
        except TimeoutError:
            await self._exchange.abort()
