"""The connections that are being told what they missed of a conversation: what else they ask for comes behind that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sessions.turn.live_turn import Subscriber


class Returning:
    """Of one conversation."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: dict[Subscriber, asyncio.Event] = {}

    @contextmanager
    def under_way(self, subscriber: Subscriber) -> Iterator[None]:
        """It is told while the context lasts."""
        told = self._told[subscriber] = asyncio.Event()
        try:
            yield
        finally:
            told.set()
            if self._told.get(subscriber) is told:
                del self._told[subscriber]

    async def told(self, subscriber: Subscriber) -> None:
        """Returns once it knows what it missed, or gave up; at once where it does not ask for that."""
        while (told := self._told.get(subscriber)) is not None:
            await told.wait()
