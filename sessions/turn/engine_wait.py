"""Waits of a turn for the engine: without limit, but only for a moment once the turn has to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from engine.api import OutputStream

CONFIRM_S = 2.0
"""Seconds for the engine to confirm that it stopped."""

T = TypeVar("T")


class EngineWait:
    """A turn's wait for the engine. `stream`: its reply's, once requested; `stopping`: set once it has to end.

    `paced`: the text is held back for its reader.
    """

    __slots__ = ("_limit", "_until", "paced", "stopping", "stream")

    def __init__(self) -> None:
        self.stream: OutputStream | None = None
        self.stopping = asyncio.Event()
        self.paced = False
        self._until: float | None = None
        self._limit: asyncio.Timeout | None = None

    async def in_time(self, output: Awaitable[T]) -> T | None:
        """Wait for a result; None if the engine's time to confirm a stop is up before."""
        try:
            async with asyncio.timeout_at(self._until) as limit:
                self._limit = limit
                return await output
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        finally:
            self._limit = None

    def stop(self) -> None:
        """Ask the engine to stop, within `CONFIRM_S` from the first call. Synchronous."""
        self.stopping.set()
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + CONFIRM_S
            if self._limit is not None:
                self._limit.reschedule(self._until)
        if self.stream is not None:
            self.stream.cancel()
