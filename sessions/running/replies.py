"""Several replies of one request, read by one reader as one stream of pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sessions.running.ephemeral_reply import EphemeralReply
from sessions.running.reply_buffer import Piece

MAX_REPLIES = 4
"""The replies of one request."""


class ReplySet:
    """Iterate it for pieces, each with its reply's number from 0 on. Replies with waiting pieces take turns."""

    def __init__(self) -> None:
        """Begin without replies. Each sets `news` when it has something."""
        self.news = asyncio.Event()
        self._replies: list[EphemeralReply] = []
        self._reading: list[int] = []

    def add(self, reply: EphemeralReply) -> None:
        """Add a reply, which shares `news`; before any is read."""
        self._reading.append(len(self._replies))
        self._replies.append(reply)

    @property
    def all(self) -> tuple[EphemeralReply, ...]:
        """The replies, in the requested order."""
        return tuple(self._replies)

    def __len__(self) -> int:
        return len(self._replies)

    def __getitem__(self, number: int) -> EphemeralReply:
        return self._replies[number]

    @property
    def first(self) -> EphemeralReply:
        """The first reply, whose turn names the request."""
        return self._replies[0]

    def on_overflow(self, cut_off: Callable[[], None]) -> None:
        """Set what is called if the reader is too late for one of them."""
        for reply in self._replies:
            reply.cut_off = cut_off

    def cancel(self) -> None:
        """End all running ones."""
        for reply in self._replies:
            reply.cancel()

    def get_nowait(self) -> tuple[int, Piece | None] | None:
        """Return the next piece and its reply's number; at a reply's end without a piece. None: nothing waits. Raises StopAsyncIteration after all ends."""
        if not self._reading:
            raise StopAsyncIteration
        for number in list(self._reading):
            self._reading.remove(number)
            try:
                piece = self._replies[number].get_nowait()
            except StopAsyncIteration:
                return number, None
            self._reading.append(number)
            if piece is not None:
                return number, piece
        return None

    def __aiter__(self) -> ReplySet:
        return self

    async def __anext__(self) -> tuple[int, Piece | None]:
        while (item := self.get_nowait()) is None:
            self.news.clear()
            await self.news.wait()
        return item
