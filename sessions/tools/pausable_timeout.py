"""The time limit of a call. Its clock stops while a user is asked, since people take their time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class PausableTimeout:
    """A time limit in seconds. Used once."""

    def __init__(self, limit_s: float) -> None:
        self._left = limit_s
        self._pauses = 0
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        """Raise TimeoutError from the block when the time is up."""
        try:
            async with asyncio.timeout(self._left) as self._limit:
                yield
        finally:
            self._limit = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock within the block; blocks may overlap."""
        self._stop()
        try:
            yield
        finally:
            self._resume()

    def _stop(self) -> None:
        self._pauses += 1
        limit = self._running
        if self._pauses == 1 and limit is not None and (end := limit.when()) is not None:
            self._left = end - asyncio.get_running_loop().time()
            limit.reschedule(None)

    def _resume(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and (limit := self._running) is not None:
            limit.reschedule(asyncio.get_running_loop().time() + self._left)

    @property
    def _running(self) -> asyncio.Timeout | None:
        """The clock, unless it has run out."""
        return None if self._limit is None or self._limit.expired() else self._limit
