"""Slots that callers wait for, fairly between groups; and for which group a task works.

A group is a key or an address. The order of the event loop is apart (`connections/loop_scheduler.py`), and so is that of the
engine (`engine/fair_queue.py`), which weighs tokens and runs in another process.
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
"""Beside others a group may hold half of what is free, which is a third of all. Alone it may hold half of all."""
OWN = ""
"""The group of the replica's own work, for everybody: it may hold all slots."""
IsHeavy = Callable[[], bool]
Waiters = deque[asyncio.Future[None]]


class FairSlots:
    """A number of slots. Callers bound how many wait.

    A group alone holds at most as much as is free, among others half of that: some slots are free for newcomers, and little of
    its work comes before theirs. A group with no slot and no waiter goes first, then the groups take turns (the lists of new
    and old flows of RFC 8290, section 4.2, with equal weights).
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._taken: Counter[str] = Counter()
        self._waiting: OrderedDict[str, Waiters] = OrderedDict()

    @asynccontextmanager
    async def slot(self, group: str) -> AsyncIterator[None]:
        """Wait for a slot, and hold it within the block."""
        await self.take(group)
        try:
            yield
        finally:
            self.release_slot(group)

    async def take(self, group: str) -> None:
        """Wait for a slot, and hold it until it is given back."""
        if not self.take_nowait(group):
            await self._wait(group)

    def take_nowait(self, group: str) -> bool:
        """Hold a slot, if nobody of the group has to wait for one; return whether there was one."""
        if group in self._waiting or not self._may_take(group):
            return False
        self._take(group)
        return True

    def release_slot(self, group: str) -> None:
        """End what `take` began for this group."""
        self._free += 1
        self._taken[group] -= 1
        if not self._taken[group]:
            del self._taken[group]
        self._fill()

    def _may_take(self, group: str) -> bool:
        if group == OWN:
            return self._free > 0
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
                self.release_slot(group)  # it was granted at the same moment
            raise

    def _fill(self) -> None:
        # where none is free, each of the waiting groups would be looked at in vain
        while self._free and (group := next(filter(self._may_take, self._waiting), None)) is not None:
            waiters = self._waiting.pop(group)
            turn = waiters.popleft()
            if waiters:
                self._waiting[group] = waiters
            if not turn.done():
                self._take(group)
                turn.set_result(None)


class Slot(NamedTuple):
    """A slot that a caller holds, until it is released."""

    group: str
    is_heavy: bool


class CappedFairSlots:
    """Fair slots of which heavy clients may hold a few, whatever is free: the others have less work to wait for.

    The group is the caller's, unless it is named.
    """

    def __init__(self, slots: int, *, heavy_slots: int) -> None:
        self._slots = FairSlots(slots)
        self._heavy = FairSlots(heavy_slots)

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
        slot = Slot(caller_group() if group is None else group, is_heavy_caller())
        if slot.is_heavy:
            await self._heavy.take(slot.group)
        try:
            await self._slots.take(slot.group)
        except BaseException:
            if slot.is_heavy:
                self._heavy.release_slot(slot.group)
            raise
        return slot

    def take_nowait(self) -> Slot | None:
        """Take a slot for the caller's group, if nobody of it has to wait for one, and the caller is not heavy."""
        group = caller_group()
        return None if is_heavy_caller() or not self._slots.take_nowait(group) else Slot(group, False)

    def release(self, slot: Slot) -> None:
        """Give a slot back."""
        self._slots.release_slot(slot.group)
        if slot.is_heavy:
            self._heavy.release_slot(slot.group)


def never_heavy() -> bool:
    """Return that no work is heavy."""
    return False


_group: ContextVar[str] = ContextVar("midstream_asker", default="")
"""Set once, when a request arrives, and inherited by its tasks; empty for the replica's own work."""
_is_heavy: ContextVar[IsHeavy] = ContextVar("midstream_is_crowd", default=never_heavy)


def caller_group() -> str:
    """Return the group that this task works for."""
    return _group.get()


def is_heavy_caller() -> bool:
    """Return whether this task works for one of those whose work holds up others now."""
    return _is_heavy.get()()


def on_behalf_of(group: str) -> AbstractContextManager[None]:
    """Within the block, calls and new tasks work for this group."""
    return _within(_group, group)


def with_heaviness(is_heavy: IsHeavy) -> AbstractContextManager[None]:
    """Within the block, this decides whether calls and new tasks are heavy."""
    return _within(_is_heavy, is_heavy)


@contextmanager
def as_service() -> Iterator[None]:
    """Within the block, work is the replica's own, whoever's request began it."""
    with on_behalf_of(""), with_heaviness(never_heavy):
        yield


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
