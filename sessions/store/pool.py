"""Connections to the servers of the store: shared fairly between groups of callers, with calls timed and counted; and the Sentinels that name the primary of a group.

After a promotion the old primary takes writes for some ten seconds more, and these are lost. So connections are dropped, and
none is made, from the moment at which a Sentinel begins a failover until a Sentinel names the new primary. A write is confirmed
only if no failover began before its confirmation.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from math import inf
from time import monotonic
from typing import Any

import msgspec
import structlog
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.asyncio.cluster import ClusterPipeline
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import (
    NoScriptError,
)

from sessions.limits.slots import FairSlots, Slot
from sessions.store_errors import CLIENT_ERRORS

CALL_S = 2.5
"""How long a call may take, retries included. A store that hangs is reported as down after that."""
REST_S = 1.0
"""How long calls fail at once after one timed out and none was answered meanwhile: waiting callers would time out one by one."""
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
AT_ONCE = 32
HEAVY_SLOTS = 6
"""Commands of heavy clients that one server has at once: the work of each answer delays the answers after it."""
LOOK_S = 1.0
"""Seconds between looks at the state of the group, which find what a lost event would have reported."""
SOON_S = 0.1
"""The same, during a failover."""
SILENT_S = 3.0
"""A subscription that receives nothing for this long, although each look sends a PING, is made anew."""
PONG_S = 0.25
"""How long a confirmation waits for a Sentinel. A slower one is skipped until something comes from it."""
WAIT_S = 5.0
"""How long a connection waits for the end of a failover."""
_EVENTS = ("*failover*", "+promoted-slave", "+switch-master", "+config-update-from")
_BEGINS = "+try-failover"
_log = structlog.get_logger("midstream.store")
Address = tuple[str, int]


class FairPool(ConnectionPool):
    """Connections that groups take in turn, so that a group with few requests does not wait behind one with many.

    Heavy clients have at most `heavy_slots` of them. `timeout`: seconds that a caller waits for one; `sentinels`: those that name
    the server, if any.
    """

    stats: StoreStats
    sentinels: Sentinels | None = None

    def __init__(self, *, timeout: float, heavy_slots: int = HEAVY_SLOTS, **options: Any) -> None:
        super().__init__(**options)
        self.timeout = timeout
        self._slots = FairSlots(self.max_connections, heavy_slots=heavy_slots)
        self._in_use: dict[Any, Slot] = {}

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a connection that is ready. Raises ConnectionError, of the library, if none is free in time."""
        if (slot := self._slots.take_nowait()) is None:
            slot = await self._wait()
        else:
            self.stats.waits.counts[0] += 1  # nearly always there is no wait
        try:
            connection = await super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
        except BaseException:
            self._slots.release(slot)
            raise
        self._in_use[connection] = slot
        return connection

    async def _wait(self) -> Slot:
        began = monotonic()
        try:
            async with asyncio.timeout(self.timeout):
                return await self._slots.take()
        except TimeoutError as error:
            raise ConnectionLost("No connection available.") from error
        finally:
            self.stats.waits.observe(monotonic() - began)

    async def release(self, connection: Any) -> None:
        """Take a connection back."""
        try:
            await super().release(connection)
        finally:
            if (slot := self._in_use.pop(connection, None)) is not None:
                self._slots.release(slot)


SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Bounds, in seconds, for what happens with every token."""


class Durations:
    """A histogram of durations. One thread counts; a reader may be one duration behind."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float] = SHORT) -> None:
        """Take the upper bounds of the ranges, in seconds and in order; longer durations have a range of their own."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds


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
        except CLIENT_ERRORS as error:
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


class _CountedPipeline:
    """Commands that are sent together and count as one."""

    stats: StoreStats

    async def execute(self, *args: Any, **options: Any) -> list[Any]:
        """Run the commands."""
        async with self.stats.call():
            answers: list[Any] = await super().execute(*args, **options)  # type: ignore[misc]
        self.stats.count_errors(answers)
        return answers


class InstrumentedPipeline(_CountedPipeline, Pipeline):  # type: ignore[misc]  # the library's own bases disagree
    """Commands for one server."""

    async def reset(self) -> None:  # type: ignore[override]
        """Release the connection at once. The library does so in a task, and ends a transaction; neither is needed here."""
        self.command_stack, self.scripts = [], set()
        if (connection := self.connection) is not None:
            self.connection = None
            await self.connection_pool.release(connection)


class InstrumentedClusterPipeline(_CountedPipeline, ClusterPipeline):  # type: ignore[misc]  # as above
    """Commands for the nodes of a cluster."""


class View(msgspec.Struct, frozen=True):
    """What one Sentinel knows of the group.

    `epoch` counts promotions; the address with the highest one is the newest. `fails_over`: it is about to promote a replica, and
    has not seen a promotion yet.
    """

    address: Address
    epoch: int
    fails_over: bool


class Sentinels:
    """Follows the primary of a group through all Sentinels that watch it, from the first call of `primary` on.

    `client_of` makes a client of a Sentinel; `drop` is called when connections to the primary must end.
    """

    def __init__(
        self,
        name: str,
        addresses: Iterable[Address],
        *,
        client_of: Callable[[Address], Redis],
        drop: Callable[[], Awaitable[None]],
    ) -> None:
        self.term = 0
        """The number of the current period with one primary and no failover. A connection belongs to one term."""
        self.name = name
        self.addresses = tuple(addresses)
        self.client_of = client_of
        self._drop = drop
        self._sentinels: dict[Address, _Sentinel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._address: Address | None = None
        self.is_open = False
        """Whether there is a primary, and no failover under way."""
        self._news = asyncio.Event()
        self._round: asyncio.Task[None] | None = None
        self._next_round: asyncio.Task[None] | None = None

    async def primary(self) -> tuple[Address, int]:
        """Return the primary's address and the term, after a failover if one is under way.

        Raises ConnectionError, of the library, if that takes too long.
        """
        for address in self.addresses:
            self._watch(address)
        try:
            async with asyncio.timeout(WAIT_S):
                while self._address is None or not self.is_open:
                    if self._address is None and (errors := self._errors()):
                        raise ConnectionLost(f"No Sentinel names a primary of {self.name!r}: {errors}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise ConnectionLost(f"The failover of {self.name!r} is not over.") from None
        return self._address, self.term

    def _errors(self) -> str:
        """Return why no Sentinel answers; empty if one has answered, or has not been asked so far."""
        errors = [one.trouble for one in self._sentinels.values()]
        return "; ".join(dict.fromkeys(errors)) if all(errors) else ""

    async def confirm(self, term: int) -> None:
        """Wait for the Sentinels' events. Raises ConnectionError, of the library, if a failover began since `term`."""
        if self._next_round is None:
            self._next_round = self._begin(self._drain_events(after=self._round))
        await asyncio.shield(self._next_round)
        if term != self.term:
            raise ConnectionLost(f"A failover of {self.name!r} began before a write was confirmed.")

    async def aclose(self) -> None:
        """Stop following the group."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def decide(self) -> None:
        """Act on the Sentinels' views. If none answers, nothing changes."""
        self._news.set()
        views = [one.view for one in self._sentinels.values() if one.view is not None]
        if not views:
            return
        newest = max(views, key=lambda view: view.epoch)
        if any(view.fails_over and view.address == newest.address for view in views):
            self._close(newest.address)
        elif not self.is_open or newest.address != self._address:
            self._close(newest.address)
            _log.info("primary found", group=self.name, host=newest.address[0], port=newest.address[1])
            self.is_open = True

    def _close(self, address: Address) -> None:
        """End the term, unless it has ended: nothing is sent to a primary until the group is open again."""
        self._address = address
        if self.is_open:
            _log.warning("failover began", group=self.name)
            self.is_open = False
            self.term += 1
            self._begin(self._drop())

    def set_sentinels(self) -> None:
        """Watch the configured Sentinels and those that others name, and stop watching the rest."""
        known = {*self.addresses, *(address for one in self._sentinels.values() for address in one.others)}
        for address in known:
            self._watch(address)
        for address in self._sentinels.keys() - known:
            self._sentinels.pop(address).stop()

    def _watch(self, address: Address) -> None:
        if address not in self._sentinels:
            self._sentinels[address] = one = _Sentinel(self, self.client_of(address))
            one.task = self._begin(one.run())

    async def _drain_events(self, *, after: asyncio.Task[None] | None) -> None:
        """Wait for what the Sentinels published before now. Callers that come meanwhile share the next round."""
        if after is not None:
            await asyncio.wait([after])
        self._round, self._next_round = self._next_round, None
        await asyncio.gather(*(one.answered() for one in self._sentinels.values()))

    def _begin(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def done() -> None:
            with suppress(*CLIENT_ERRORS):
                await work

        # not in the context of the request that happens to start this
        task = asyncio.get_running_loop().create_task(done(), context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Sentinel:
    """One Sentinel: its view, and its events."""

    def __init__(self, group: Sentinels, client: Redis) -> None:
        self.view: View | None = None
        """None while it does not answer."""
        self.trouble = ""
        """Why it did not answer the last look."""
        self.others: frozenset[Address] = frozenset()
        self.task: asyncio.Task[None] | None = None
        self._group = group
        self._client = client
        self._events: PubSub | None = None
        self._is_silent = False
        self._pongs: deque[asyncio.Future[None]] = deque()
        self._stale = asyncio.Event()

    async def run(self) -> None:
        """Follow the Sentinel until cancelled."""
        async with self._client:
            while True:
                try:
                    async with asyncio.TaskGroup() as both:
                        both.create_task(self._listen())
                        both.create_task(self._poll())
                except Exception:  # noqa: BLE001 - a task's boundary: an odd answer must not end it
                    _log.exception("sentinel not followed")
                await asyncio.sleep(LOOK_S)

    def stop(self) -> None:
        """Stop following the Sentinel."""
        if self.task is not None:
            self.task.cancel()

    async def answered(self) -> None:
        """Wait for what the Sentinel published before now: its answer to a PING comes after that."""
        if (events := self._events) is None or self._is_silent:
            return
        pong = asyncio.get_running_loop().create_future()
        self._pongs.append(pong)
        try:
            async with asyncio.timeout(PONG_S):
                await events.ping()
                await pong
        except CLIENT_ERRORS:
            self._is_silent = True

    async def _listen(self) -> None:
        while True:
            with suppress(*CLIENT_ERRORS):
                async with self._client.pubsub() as events:
                    await events.psubscribe(*_EVENTS)
                    await self._drain_events(events)
            pause_s = LOOK_S if self._events is None else SOON_S
            self._events = None
            while self._pongs:
                if not (pong := self._pongs.popleft()).done():
                    pong.set_exception(ConnectionLost("The subscription was lost."))
            await asyncio.sleep(pause_s)

    async def _drain_events(self, events: PubSub) -> None:
        while (message := await events.get_message(timeout=SILENT_S)) is not None:
            self._is_silent = False
            match message["type"]:
                case "pong":
                    if not (pong := self._pongs.popleft()).done():
                        pong.set_result(None)
                case "pmessage":
                    self._take(message["channel"], message["data"])
                case _:
                    self._events = events
                    self._stale.set()  # earlier events were missed

    def _take(self, event: str, facts: str) -> None:
        if self._group.name not in facts.split():
            return
        self._stale.set()
        if event == _BEGINS and self.view is not None:
            self.view = msgspec.structs.replace(self.view, fails_over=True)
            self._group.decide()

    async def _poll(self) -> None:
        while True:
            self._stale.clear()
            try:
                view, others = await self._query()
                self.trouble = ""
            except CLIENT_ERRORS as trouble:
                view, others = None, self.others
                self.trouble = str(trouble) or type(trouble).__name__
            if not self._stale.is_set():  # otherwise the answers are older than an event
                self.view, self.others = view, others
                self._group.set_sentinels()
                self._group.decide()
            await self.answered()  # notices a lost subscription
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if self._group.is_open else SOON_S):
                    await self._stale.wait()

    async def _query(self) -> tuple[View, frozenset[Address]]:
        """Return the Sentinel's view, and the other Sentinels of the group. Raises the library's errors."""
        name = self._group.name
        state: Any = await self._client.sentinel_master(name)
        primary: Any = await self._client.sentinel_get_master_addr_by_name(name)
        others: Any = await self._client.sentinel_sentinels(name)
        host, port = primary or (state["ip"], state["port"])
        # after the promotion it names the new primary, but may be busy with other replicas for a failover's whole timeout
        is_promoted = (host, int(port)) != (state["ip"], int(state["port"]))
        fails_over = "failover_in_progress" in state["flags"] and not is_promoted
        view = View((host, int(port)), int(state["config-epoch"]), fails_over)
        return view, frozenset((other["ip"], int(other["port"])) for other in others)
