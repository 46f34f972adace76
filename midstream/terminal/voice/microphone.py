"""What the microphone heard, on its way to the server: all of it, or what is said between two presses of a key."""

from __future__ import annotations

import asyncio
from collections import deque

from midstream.spoken import SpokenConversation

WAITING_PIECES = 100
"""Pieces of sound that wait for the line, two seconds; beyond them the oldest are dropped."""
TAIL_PIECES = 10
"""Pieces that are sent behind the second press: it comes before the last word is over."""


class Microphone:
    """`put` takes sound that `run` sends. `by_key`: only while `press` says so."""

    def __init__(self, spoken: SpokenConversation, *, by_key: bool) -> None:
        self._spoken = spoken
        self._by_key = by_key
        self._is_pressed = False
        self._tail = 0
        self._waiting: deque[bytes | None] = deque(maxlen=WAITING_PIECES)  # None: what was said ends here
        self._news = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether what is said now is sent."""
        return not self._by_key or self._is_pressed

    def press(self) -> bool:
        """Begin to listen, or end what is said; return which of both."""
        self._is_pressed = not self._is_pressed
        self._tail = 0 if self._is_pressed else TAIL_PIECES
        return self._is_pressed

    def drop(self) -> None:
        """Drop what is being said: there is nobody who hears it."""
        self._is_pressed, self._tail = False, 0
        self._waiting.clear()

    def put(self, samples: bytes) -> None:
        """Take what was heard."""
        if self.is_open:
            self._put(samples)
        elif self._tail:
            self._put(samples)
            self._tail -= 1
            if not self._tail:
                self._put(None)

    async def run(self) -> None:
        """Send, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._waiting:
                piece = self._waiting.popleft()
                await (self._spoken.commit() if piece is None else self._spoken.send(piece))

    def _put(self, piece: bytes | None) -> None:
        self._waiting.append(piece)
        self._news.set()
