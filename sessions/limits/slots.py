"""Slots that callers wait for, shared fairly between groups, and the group that a task works for.

A group is a key or an address. It is set once, when a request arrives, and inherited by its tasks; it is empty for the replica's
own work. The event loop (`connections/loop_scheduler.py`) and the engine (`engine/fair_queue.py`) have queues of their own.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import NamedTuple, TypeVar

T = TypeVar("T")
GROUPS_PART = 2
"""Among others, a group may hold half of what is free, which is a third of all. Alone it may hold half of all."""
OWN = ""
"""The group of the replica's own work, for everybody: it may hold all slots."""
IsHeavy = Callable[[], bool]
Waiters = deque[asyncio.Future[None]]


class Slot(NamedTuple):
    """A slot that a caller holds, until it is released. `heavy`: the one among those of heavy clients, if the caller is heavy."""

    group: str
    heavy: Slot | None = None


class FairSlots:
    """A number of slots. Callers bound how many wait. The group is the caller's, unless it is named.

    A group alone holds at most as much as is free, among others half of that. So some slots are free for newcomers, whose work
    waits for little of the group's in the event loop and the store. A group with no slot and no waiter goes first, then the
    groups take turns (the lists of new and old flows of RFC 8290, section 4.2, with equal weights). `heavy_slots`: how many of
    them heavy clients may hold, whatever is free: the others have less work to wait for. `each`: a fixed share of each group,
    instead of one of what is free.
    """

    def __init__(self, slots: int, *, heavy_slots: int | None = None, each: int | None = None) -> None:
        self._free = slots
        self._each = each
        self._heavy = None if heavy_slots is None else FairSlots(heavy_slots)
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, Waiters] = OrderedDict()

    @asynccontextmanager
    async def slot(self, group: str | None = None) -> AsyncIterator[None]:
        """Wait for a slot, and hold it within the block."""
        slot = await self.take(group)
        try:
            yield
        finally:
            self.release(slot)

    async def take(self, group: str | None = None) -> Slot:
        """Wait for a slot, and hold it until it is released."""
        group = caller_group() if group is None else group
        heavy = await self._heavy.take(group) if self._heavy is not None and is_heavy_caller() else None
        slot = Slot(group, heavy)
        try:
            if not self._may_take_now(group):
                await self._wait(group)
            else:
                self._take(group)
        except BaseException:
            if self._heavy is not None and heavy is not None:
                self._heavy.release(heavy)
            raise
        return slot

    def take_nowait(self, group: str | None = None) -> Slot | None:
        """Take a slot; None if the group has to wait for one, or the caller is heavy."""
        group = caller_group() if group is None else group
        if (self._heavy is not None and is_heavy_caller()) or not self._may_take_now(group):
            return None
        self._take(group)
        return Slot(group)

    def release(self, slot: Slot) -> None:
        """Give a slot back."""
        self._free += 1
        self._taken[slot.group] -= 1
        if not self._taken[slot.group]:
            del self._taken[slot.group]
        self._fill()
        if self._heavy is not None and slot.heavy is not None:
            self._heavy.release(slot.heavy)

    def _may_take_now(self, group: str) -> bool:
        return group not in self._waiting and self._may_take(group)

    def _may_take(self, group: str) -> bool:
        if group == OWN:
            return self._free > 0
        if (most := self._each) is None:
            most = self._free if self._is_alone(group) else max(1, self._free // GROUPS_PART)
        return self._free > 0 and self._taken.get(group, 0) < most

    def _is_alone(self, group: str) -> bool:
        """Return whether no other group holds a slot or waits, apart from the replica's own work."""
        return all(one in (group, OWN) for one in chain(self._taken, self._waiting))

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
                self.release(Slot(group))  # the slot was granted at the same moment
            elif turn in (waiters := self._waiting.get(group, Waiters())):
                waiters.remove(turn)
                if not waiters:
                    del self._waiting[group]
                    self._fill()  # another group may be alone now
            raise

    def _fill(self) -> None:
        # without a free slot, each of the waiting groups would be looked at in vain
        while self._free and (group := next(filter(self._may_take, self._waiting), None)) is not None:
            waiters = self._waiting.pop(group)
            turn = waiters.popleft()
            if waiters:
                self._waiting[group] = waiters
            if not turn.done():  # cancelled a moment ago
                self._take(group)
                turn.set_result(None)


def never_heavy() -> bool:
    """Return that no work is heavy."""
    return False


_group: ContextVar[str] = ContextVar("midstream_asker", default="")
_is_heavy: ContextVar[IsHeavy] = ContextVar("midstream_is_crowd", default=never_heavy)


def caller_group() -> str:
    """Return the group that this task works for."""
    return _group.get()


def is_heavy_caller() -> bool:
    """Return whether this task works for a client whose work now holds up others."""
    return _is_heavy.get()()


def on_behalf_of(group: str) -> AbstractContextManager[None]:
    """Within the block, calls and new tasks work for this group."""
    return _within(_group, group)


def with_heaviness(is_heavy: IsHeavy) -> AbstractContextManager[None]:
    """Within the block, `is_heavy` decides whether calls and new tasks are heavy."""
    return _within(_is_heavy, is_heavy)


@contextmanager
def as_service() -> Iterator[None]:
    """Within the block, work is the replica's own, no matter whose request began it."""
    with on_behalf_of(""), with_heaviness(never_heavy):
        yield


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
