"""The connections that are being resumed in a conversation: their other requests wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from sessions.turn.turn import Subscriber


class PendingResumes:
    """Those of one conversation."""

    __slots__ = ("_resumed",)

    def __init__(self) -> None:
        self._resumed: dict[Subscriber, asyncio.Event] = {}

    @contextmanager
    def resuming(self, subscriber: Subscriber) -> Iterator[None]:
        """Mark a connection as being resumed while the context lasts."""
        wait = self._resumed[subscriber] = asyncio.Event()
        try:
            yield
        finally:
            wait.set()
            if self._resumed.get(subscriber) is wait:
                del self._resumed[subscriber]

    async def wait(self, subscriber: Subscriber) -> None:
        """Wait until a connection is resumed, or gave up; returns at once if it is not being resumed."""
        while (wait := self._resumed.get(subscriber)) is not None:
            await wait.wait()
