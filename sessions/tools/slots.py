"""Places for concurrent calls: a limited number, of which no owner can hold all."""

from __future__ import annotations

import asyncio
from collections import Counter, deque

from sessions.tools.server_tool import ToolFailed

MOST_WAITING = 256
"""Calls that may wait for a place. Further ones are refused."""


class Slot:
    """One taken place. It is free again when all its holders have released it."""

    def __init__(self, slots: Slots, owner: str) -> None:
        self._slots = slots
        self._owner = owner
        self._holders = 1

    def hold(self) -> None:
        """Keep the place for one more holder, such as a thread that outlives its call."""
        self._holders += 1

    def release(self) -> None:
        """Release one hold. Call it as often as the place is held."""
        self._holders -= 1
        if self._holders == 0:
            self._slots.release_for(self._owner)


class Slots:
    """`total` places, of which an owner has `each` at most. The first to ask goes first, as far as both limits allow."""

    def __init__(self, *, total: int, each: int) -> None:
        self._free = total
        self._each = each
        self._held: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def free(self) -> int:
        """The number of free places."""
        return self._free

    def take_nowait(self, owner: str) -> bool:
        """Take a place if one is free for the owner; return whether one was taken."""
        if self._free <= 0 or self._held[owner] >= self._each:
            return False
        self._free -= 1
        self._held[owner] += 1
        return True

    async def take(self, owner: str) -> Slot:
        """Wait for a place and take it. Raises ToolFailed if too many calls wait already."""
        if not self.take_nowait(owner):
            await self._wait(owner)
        return Slot(self, owner)

    def release_for(self, owner: str) -> None:
        """Free a place, and give it to the first waiter that may have it."""
        self._free += 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._fill()

    async def _wait(self, owner: str) -> None:
        if len(self._waiting) >= MOST_WAITING:
            raise ToolFailed("Too many tool calls are waiting. This one was not run.")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release_for(owner)  # it was granted at the same moment
            else:
                self._waiting.remove((owner, turn))
            raise

    def _fill(self) -> None:
        for waiter in list(self._waiting):
            owner, turn = waiter
            if not turn.done() and self.take_nowait(owner):
                self._waiting.remove(waiter)
                turn.set_result(None)
