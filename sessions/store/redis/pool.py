"""The pool of connections to a server of the store: shared fairly between groups of callers, with calls timed and counted.

A group alone holds at most as much as is free, among others half of that. So some slots are free for newcomers, and the
event loop and the store have little of its work before theirs. A group with no slot and no waiter goes first, then the groups
take turns (the lists of new and old flows of RFC 8290, section 4.2, with equal weights).
While others ask, all heavy clients together hold a few slots (`CappedFairSlots`).

The group that a task works for is set once, when a request arrives, and inherited by its tasks; it is empty for the replica's own
work.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from itertools import chain
from math import inf
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import (
    NoScriptError,
    RedisClusterException,
    RedisError,
)

from sessions.observer import Durations
from sessions.store.redis.sentinels import Sentinels

CALL_S = 2.5
"""How long a call may take, retries included. A store that hangs is reported as down after that."""
REST_S = 1.0
"""How long calls fail at once after one took too long and none was answered meanwhile: callers that waited for it, in a queue or
for a lock, would take as long again, one after the other."""
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TROUBLES = (RedisError, RedisClusterException, TimeoutError, OSError)
AT_ONCE = 32
HEAVY_SLOTS = 6
"""Commands of heavy clients that one server has at once: the work of each answer delays the answers after it."""
GROUPS_PART = 2
"""Beside others a group may hold half of what is free, which is a third of all. Alone it may hold half of all."""
OWN = ""
"""The group of the replica's own work, for everybody: it may hold all slots."""
T = TypeVar("T")
IsHeavy = Callable[[], bool]
Waiters = deque[asyncio.Future[None]]


class FairPool(ConnectionPool):
    """Connections that groups take in turn, so that a group that asks seldom does not wait behind one that asks often.

    Heavy clients have a few of them. `timeout`: seconds that a caller waits for one; `sentinels`: those that name the server, if
    any do.
    """

    stats: StoreStats
    sentinels: Sentinels | None = None

    def __init__(self, *, timeout: float, heavy_slots: int = HEAVY_SLOTS, **options: Any) -> None:
        super().__init__(**options)
        self.timeout = timeout
        self._slots = CappedFairSlots(self.max_connections, heavy_slots=heavy_slots)
        self._in_use: dict[Any, Slot] = {}

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a connection that is ready. Raises ConnectionError, of the library, if none is free in time."""
        began = monotonic()
        try:
            slot = self._slots.take_nowait() or await self._wait()
            try:
                connection = await super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
            except BaseException:
                self._slots.release(slot)
                raise
        finally:
            self.stats.waits.observe(monotonic() - began)
        self._in_use[connection] = slot
        return connection

    async def _wait(self) -> Slot:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._slots.take()
        except TimeoutError as error:
            raise ConnectionLost("No connection available.") from error

    async def release(self, connection: Any) -> None:
        """Take a connection back."""
        try:
            await super().release(connection)
        finally:
            if (slot := self._in_use.pop(connection, None)) is not None:
                self._slots.release(slot)


class StoreStats:
    """Counts of one client: `calls`, from call to answer, retries included; `waits` for a connection; errors by type.

    `running`: calls without an answer so far. A pipeline is one call. Only errors that reach a caller count: neither those that
    a retry fixed, nor a script that has to be loaded first.
    """

    def __init__(self) -> None:
        self.calls = Durations(SECONDS)
        self.waits = Durations(SECONDS)
        self.errors: Counter[str] = Counter()
        self.running = 0
        self._answered_at = -inf
        self._hung_at = -inf

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """Time the block, and count its error. Raises TimeoutError if it takes longer than `CALL_S`, or if the store hangs."""
        began = monotonic()
        if self._answered_at < self._hung_at and began < self._hung_at + REST_S:
            self.failed(hangs := TimeoutError("The store hangs."))
            raise hangs
        self.running += 1
        try:
            async with asyncio.timeout(CALL_S):
                yield
            self._answered_at = monotonic()
        except _TROUBLES as error:
            if isinstance(error, TimeoutError) and self._answered_at < began:
                self._hung_at = monotonic()
            self.failed(error)
            raise
        finally:
            self.running -= 1
            self.calls.observe(monotonic() - began)

    def failed(self, error: BaseException) -> None:
        """Count an error."""
        if not isinstance(error, NoScriptError):
            self.errors[type(error).__name__] += 1

    def count_errors(self, answers: Iterable[Any]) -> None:
        """Count the errors among a pipeline's answers."""
        for answer in answers:
            if isinstance(answer, BaseException):
                self.failed(answer)


class InstrumentedRedis(Redis):
    """A counting client of one server."""

    stats: StoreStats

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run a command."""
        async with self.stats.call():
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> Pipeline:  # noqa: FBT001, FBT002 - the library's
        """Make a counting pipeline."""
        pipeline = InstrumentedPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )
        pipeline.stats = self.stats
        return pipeline


class InstrumentedPipeline(Pipeline):
    """Commands that are sent together and count as one."""

    stats: StoreStats

    async def execute(self, raise_on_error: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - the library's
        """Runs them."""
        async with self.stats.call():
            answers = await super().execute(raise_on_error)
        self.stats.count_errors(answers)
        return answers

    async def reset(self) -> None:  # type: ignore[override]
        """Give its connection back. The library does so in a task, which this pool needs as little as a transaction is used."""
        self.command_stack, self.scripts = [], set()
        if (connection := self.connection) is not None:
            self.connection = None
            await self.connection_pool.release(connection)


class InstrumentedClusterPipeline(ClusterPipeline):
    """Commands that are sent together to the nodes of a cluster and count as one."""

    stats: StoreStats

    async def execute(self, raise_on_error: bool = True, allow_redirections: bool = True) -> list[Any]:  # noqa: FBT001, FBT002 - the library's
        """Runs them."""
        async with self.stats.call():
            answers = await super().execute(raise_on_error, allow_redirections)
        self.stats.count_errors(answers)
        return answers


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


class FairSlots:
    """A number of slots. Callers bound how many wait."""

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


def never_heavy() -> bool:
    """Return that no work is heavy."""
    return False


_group: ContextVar[str] = ContextVar("midstream_asker", default="")
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
