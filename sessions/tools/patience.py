"""How long a call may take. The clock stands still while a user is asked: people take as long as they take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager


class Patience:
    """So many seconds. Used once."""

    def __init__(self, limit_s: float) -> None:
        self._left = limit_s
        self._pauses = 0
        self._limit: asyncio.Timeout | None = None

    @asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        """Raises TimeoutError from the block when the time is up."""
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
            self._go_on()

    def _stop(self) -> None:
        self._pauses += 1
        if self._pauses == 1 and self._limit is not None and (end := self._limit.when()) is not None:
            self._left = end - asyncio.get_running_loop().time()
            self._limit.reschedule(None)

    def _go_on(self) -> None:
        self._pauses -= 1
        if self._pauses == 0 and self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + self._left)
