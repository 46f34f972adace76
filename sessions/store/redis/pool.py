"""The pool of connections to a server of the store: shared fairly between groups of callers, with calls timed and counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from math import inf
from time import monotonic
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterPipeline
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import (
    NoScriptError,
    RedisClusterException,
    RedisError,
)

from engine.durations import Durations
from sessions.limits.slots import CappedFairSlots, Slot
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
