"""An answer that does not end, as a connection's `Transport`."""

from __future__ import annotations

import asyncio

from connections.events.telling import BEAT
from connections.http.exchange import Exchange
from connections.line.connection import Disconnected

WAITING_BYTES = 32 * 1024
PIECE_BYTES = 16 * 1024
"""What the server gets at once: it keeps what its peer does not take, and a copy of a whole page besides would stay as long."""
BEAT_S = 15.0
"""Proxies let go of what is silent for a minute; most of them, that is."""
CLOSE_S = 2.0


class EventTransport:
    """What is written waits here until the server takes it, up to a bound. `send` must be running."""

    def __init__(self, exchange: Exchange, first: bytes) -> None:
        self._exchange = exchange
        self._waiting = bytearray(first)
        self._given = asyncio.Event()
        self._taken = asyncio.Event()
        self._is_silent = True
        self._given.set()

    async def receive(self) -> str | bytes:
        """A reader says nothing. Raises Disconnected once it is gone."""
        await self._exchange.left()
        raise Disconnected

    @property
    def is_writable(self) -> bool:
        """Whether more may wait."""
        return len(self._waiting) < WAITING_BYTES

    async def writable(self) -> None:
        """Waits until the server took what waits."""
        while not self.is_writable:
            self._taken.clear()
            await self._taken.wait()

    def write(self, text: bytes) -> None:
        """Sends events: at once where nothing waits before them and the peer reads."""
        self._is_silent = False
        if not text or (not self._waiting and self._exchange.write_nowait(text)):
            return
        self._waiting += text
        self._given.set()

    def write_binary(self, message: bytes) -> None:
        """Drops it: readers of events are sent no sound."""

    def charge(self) -> None:
        """Asks for nothing, so nothing is refused."""

    async def send(self) -> None:
        """Gives the server what waits, as fast as the peer reads, and a sign of life where nothing does, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._given.wait()
            except TimeoutError:
                if self._is_silent:
                    # What was written in the same turn of the loop stays.
                    self._waiting = self._waiting or bytearray(BEAT)
            self._is_silent = True
            self._given.clear()
            while self._waiting:
                await self._send_piece()

    async def _send_piece(self) -> None:
        """What waits stays until the server takes it: who is cancelled meanwhile has sent nothing of it."""
        piece = bytes(self._waiting[:PIECE_BYTES])
        await self._exchange.write(piece)
        del self._waiting[: len(piece)]
        self._taken.set()

    async def close(self, code: int, reason: str) -> None:  # noqa: ARG002 - an event stream has no words for why
        """Ends the answer: readers come back."""
        try:
            async with asyncio.timeout(CLOSE_S):
                while self._waiting:
                    await self._send_piece()
                await self._exchange.write(b"", more=False)
        except TimeoutError:
            await self._exchange.abort()
