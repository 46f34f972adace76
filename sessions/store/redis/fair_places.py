"""A concurrency limit that is fair between groups: a group that asks seldom does not wait behind one that asks often.

A group with no place and no waiter goes first, then the groups take turns (the lists of new and old flows of RFC 8290, section
4.2, with equal weights).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

Waiters = deque[asyncio.Future[None]]


class FairPlaces:
    """A number of places. Callers bound how many wait."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, Waiters] = OrderedDict()

    @asynccontextmanager
    async def place(self, group: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it within the block."""
        await self.take(group)
        try:
            yield
        finally:
            self.give_back(group)

    async def take(self, group: str) -> None:
        """Wait for a place, and hold it until it is given back."""
        if self._free > 0 and not self._waiting:
            self._take(group)
        else:
            await self._wait(group)

    def give_back(self, group: str) -> None:
        """End what `take` began for this group."""
        self._free += 1
        self._taken[group] -= 1
        if not self._taken[group]:
            del self._taken[group]
        self._fill()

    def _take(self, group: str) -> None:
        self._free -= 1
        self._taken[group] += 1

    async def _wait(self, group: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if group not in self._waiting:
            self._waiting[group] = deque()
            if group not in self._taken:
                self._waiting.move_to_end(group, last=False)
        self._waiting[group].append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.give_back(group)  # it was granted at the same moment
            raise

    def _fill(self) -> None:
        while self._free > 0 and self._waiting:
            group, waiters = self._waiting.popitem(last=False)
            turn = waiters.popleft()
            if waiters:
                self._waiting[group] = waiters
            if not turn.done():
                self._take(group)
                turn.set_result(None)
