"""The concurrency limit of an upstream; other requests wait, fairly between clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from engine.scheduling.waiting_queue import Running, Waiting, WaitingQueue

W = TypeVar("W", bound=Waiting)


class ConcurrencyLimiter(Generic[W]):
    """A waiting request gets its place in the queue, from 1 on, through `on_position`, at each change."""

    def __init__(self, limit: int, on_position: Callable[[W, int], None]) -> None:
        """Take the limit, at least one."""
        self._limit = limit
        self._on_position = on_position
        self._queue: WaitingQueue[W] = WaitingQueue()
        self._granted: dict[int, asyncio.Future[None]] = {}
        self._running = Running()

    @property
    def running(self) -> int:
        """The number of requests with a place."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._queue)

    async def enter(self, one: W) -> None:
        """Wait for a place, which `leave` gives back."""
        if self.running < self._limit and not self.waiting:
            self._running.add(one.client)
            return
        granted = self._granted[one.arrival] = asyncio.get_running_loop().create_future()
        self._queue.add(one)
        self._report_positions()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._running.remove(one.client)  # it was granted at the same moment
            raise
        finally:
            del self._granted[one.arrival]
            if one in self._queue:
                self._queue.remove(one)
                self._report_positions()
            self._fill()

    def leave(self, one: W) -> None:
        """Give a place back, to the next request."""
        self._running.remove(one.client)
        self._fill()

    def _fill(self) -> None:
        """Admit requests while there is room."""
        while self.waiting and self.running < self._limit:
            first = self._queue.first(self._running)
            self._queue.remove(first)
            granted = self._granted[first.arrival]
            if not granted.done():
                self._running.add(first.client)
                granted.set_result(None)
            self._report_positions()

    def _report_positions(self) -> None:
        for position, one in enumerate(self._queue.in_order(self._running), start=1):
            self._on_position(one, position)
