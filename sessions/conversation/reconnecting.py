"""The connections that are being resumed in a conversation: their other requests wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sessions.turn.live_turn import Subscriber


class Returning:
    """Those of one conversation."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[Subscriber, asyncio.Event] = {}

    @contextmanager
    def under_way(self, subscriber: Subscriber) -> Iterator[None]:
        """Mark a connection as being resumed while the context lasts."""
        told = self._told[subscriber] = asyncio.Event()
        try:
            yield
        finally:
            told.set()
            if self._told.get(subscriber) is told:
                del self._told[subscriber]

    async def told(self, subscriber: Subscriber) -> None:
        """Wait until a connection is resumed, or gave up; returns at once if it is not being resumed."""
        while (told := self._told.get(subscriber)) is not None:
            await told.wait()
