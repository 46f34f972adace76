"""As many requests at once as an upstream runs well; the others wait their turn, fair between clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from engine.scheduling.waiting_queue import Running, Waiting, WaitingQueue

W = TypeVar("W", bound=Waiting)


class Places(Generic[W]):
    """Who waits is told of the place in the queue, from 1 on, by `on_position`, at each change of the queue."""

    def __init__(self, limit: int, on_position: Callable[[W, int], None]) -> None:
        """Take how many may run at once, at least one."""
        self._limit = limit
        self._on_position = on_position
        self._queue: WaitingQueue[W] = WaitingQueue()
        self._turns: dict[int, asyncio.Future[None]] = {}
        self._running = Running()

    @property
    def running(self) -> int:
        """How many have a place."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._queue)

    async def enter(self, one: W) -> None:
        """Wait for a place. Whoever comes back from here has one, and gives it back by `leave`."""
        if self.running < self._limit and not self.waiting:
            self._running.add(one.client)
            return
        turn = self._turns[one.arrival] = asyncio.get_running_loop().create_future()
        self._queue.add(one)
        self._tell_positions()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._running.remove(one.client)  # its turn came in the same moment
            raise
        finally:
            del self._turns[one.arrival]
            if one in self._queue:
                self._queue.remove(one)
                self._tell_positions()
            self._fill()

    def leave(self, one: W) -> None:
        """Give a place back, to whoever is next."""
        self._running.remove(one.client)
        self._fill()

    def _fill(self) -> None:
        """Let those in for whom there is room."""
        while self.waiting and self.running < self._limit:
            first = self._queue.first(self._running)
            self._queue.remove(first)
            turn = self._turns[first.arrival]
            if not turn.done():
                self._running.add(first.client)
                turn.set_result(None)
            self._tell_positions()

    def _tell_positions(self) -> None:
        for position, one in enumerate(self._queue.in_order(self._running), start=1):
            self._on_position(one, position)
