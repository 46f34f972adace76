"""The journal: all turns' writes in one call, one turn's events, and compaction.

At most one call is under way. Events that come meanwhile make the next one, so a slow store gets fewer, larger writes.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import redis.exceptions as errors
import structlog
from redis.asyncio import Redis, RedisCluster

from sessions.errors import OwnershipLost, StoreDown, StoreFault
from sessions.events import Journalled, encode
from sessions.store.history.codec import Keys
from sessions.store.ledger import EVENT_BYTES
from sessions.store.redis.client import (
    APPEND,
    COMPACT,
    SCHEDULE,
    SETTLE_DUE,
    TAKE_DUE,
    load_scripts,
    queue_script,
    run_script,
)
from sessions.store_errors import store_error_of, store_errors

AT_ONCE = 32
"""Turns that one call writes. The store serves nobody else meanwhile: less than a millisecond."""


class Entry(msgspec.Struct, frozen=True):
    """An encoded event, and what else it changes in the conversation (see `append.lua`)."""

    seq: int
    event: bytes
    patch: bytes = b""


class _Write(msgspec.Struct):
    keys: tuple[str, str]
    turn_id: str
    entries: Sequence[Entry]
    written: asyncio.Future[bool]
    on_written: Callable[[], None]


class Journal:
    """Appends events of all turns in one call, while `run` runs."""

    def __init__(self, client: Redis, *, replica: str) -> None:
        self._client = client
        self._replica = replica
        self._waiting: list[_Write] = []
        self._wake = asyncio.Event()
        # in a cluster a script sees one conversation's keys only; elsewhere one call is cheaper than many
        self._at_once = 1 if isinstance(cast("object", client), RedisCluster) else AT_ONCE
        self.pipelines = 0
        self.bytes = 0

    def put_nowait(
        self,
        keys: tuple[str, str],
        turn_id: str,
        entries: Sequence[Entry],
        *,
        on_written: Callable[[], None] = lambda: None,
    ) -> asyncio.Future[bool]:
        """Append with the next call; the future is done when the store has the entries.

        Its result is whether other replicas watch the conversation. It fails with StoreDown, or with OwnershipLost if the
        caller no longer owns the turn. Appending again is harmless, and so is cancelling the future. `on_written` is called as soon as
        it is done: a callback of its own would be called a turn of the event loop later.
        """
        self.bytes += sum(len(entry.event) for entry in entries)
        write = _Write(keys, turn_id, entries, asyncio.get_running_loop().create_future(), on_written)
        self._waiting.append(write)
        self._wake.set()
        return write.written

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            writes, self._waiting = self._waiting, []
            try:
                answers = await self._execute(writes)
            except StoreDown as trouble:
                answers = [trouble] * len(writes)
            for write, answer in zip(writes, answers, strict=True):
                if not write.written.done():  # its turn still waits
                    self._resolve(write, answer)
                    write.on_written()

    async def _execute(self, writes: Sequence[_Write]) -> list[Any]:
        self.pipelines += 1
        calls = [writes[start : start + self._at_once] for start in range(0, len(writes), self._at_once)]
        if len(calls) == 1 and self._at_once > 1:  # in a cluster a pipeline waits for no slot of the client
            return self._answers(calls, [await run_script(self._client, APPEND, *self._command(writes))])
        with store_errors():
            answers = await self._pipeline(calls)
            if any(isinstance(answer, errors.NoScriptError) for answer in answers):
                await load_scripts(self._client)
                answers = await self._pipeline(calls)
        return self._answers(calls, answers)

    async def _pipeline(self, calls: Sequence[Sequence[_Write]]) -> list[Any]:
        pipe = self._client.pipeline(transaction=False)
        for call in calls:
            queue_script(pipe, APPEND, *self._command(call))
        return await pipe.execute(raise_on_error=False)

    def _command(self, writes: Sequence[_Write]) -> tuple[list[str], list[str | bytes | int]]:
        """Return the keys and the arguments of one call."""
        keys = [key for write in writes for key in write.keys]
        return keys, [self._replica, *(part for write in writes for part in _parts(write))]

    @staticmethod
    def _answers(calls: Sequence[Sequence[_Write]], answers: Sequence[Any]) -> list[Any]:
        """Return the answer to each write."""
        return [
            one
            for call, answer in zip(calls, answers, strict=True)
            for one in (answer if isinstance(answer, list) else [answer] * len(call))
        ]

    @staticmethod
    def _resolve(write: _Write, answer: Any) -> None:
        match answer:
            case b"ok":
                write.written.set_result(False)
            case bytes() if answer.startswith(b"ok "):
                write.written.set_result(True)
            case b"lost" | b"behind":
                write.written.set_exception(OwnershipLost(write.turn_id))
            case StoreDown():
                write.written.set_exception(answer)
            case BaseException():
                write.written.set_exception(store_error_of(answer))
            case _:
                write.written.set_exception(store_error_of(ValueError(f"an answer of {len(answer)} bytes")))


def _parts(write: _Write) -> list[str | bytes | int]:
    parts: list[str | bytes | int] = [write.turn_id, len(write.entries)]
    for entry in write.entries:
        parts += (entry.seq, entry.event, entry.patch)
    return parts


PATIENCE_S = 0.25
COUNTED_BYTES = 64 * 1024
"""Bytes of events that are counted at once."""
FAULTS = 3
"""Consecutive writes that a working store may refuse before the turn is ended."""


class TurnJournal:
    """The entries of one turn that are not known to be stored. At most one write is under way.

    Events that the store did not take in time stay here and are written with the next ones, or by `catch_up`.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        keys: tuple[str, str],
        turn_id: str,
        wrote: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`wrote`: is given the bytes of its events, many at a time."""
        self._journal = journal
        self._keys = keys
        self._turn_id = turn_id
        self._unwritten: list[Entry] = []
        self._writing: asyncio.Future[bool] | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._sent = 0
        self._late = False
        self._dropped = False
        self._faults = 0
        self._wrote = wrote
        self._uncounted = 0
        self.watched = False
        """Whether other replicas watched the conversation at the last write."""

    def lacks(self, seq: int) -> bool:
        """Return whether an event up to `seq` is not known to be stored."""
        return any(entry.seq <= seq for entry in self._unwritten)

    async def write(self, event: Journalled, patch: bytes = b"") -> bool:
        """Write an event; return whether all is stored. Waits for the store, `PATIENCE_S` at most.

        `patch`: what else it changes in the conversation. Raises OwnershipLost, and StoreFault if the store keeps refusing the
        journal.
        """
        if self._dropped:
            raise OwnershipLost(self._turn_id)
        entry = Entry(event.seq, encode(event), patch)
        self._unwritten.append(entry)
        self._count(len(entry.event) + EVENT_BYTES)
        self._refuse_faults(self._collect())
        while self._unwritten and not self._late:
            self._begin()
            await self._settled(PATIENCE_S)
            self._refuse_faults(self._collect())
            self._late = self._late or self._writing is not None
        if self._dropped:  # during the write, in the queue of a turn that is given up
            raise OwnershipLost(self._turn_id)
        if self._unwritten:
            self._begin()
        return not self._unwritten

    async def catch_up(self) -> bool:
        """Try again to write what the store did not take in time; return whether all is stored. Waits and raises as `write` does."""
        self._refuse_faults(self._collect())
        if self._unwritten and not self._dropped:
            self._begin()
            await self._settled(PATIENCE_S)
            self._refuse_faults(self._collect())
        if self._dropped:
            raise OwnershipLost(self._turn_id)
        return not self._unwritten

    async def write_rest(self) -> None:
        """Wait until all is stored. Raises StoreDown, OwnershipLost."""
        while self._unwritten:
            self._begin()
            await self._settled(None)
            if (trouble := self._collect()) is not None:
                raise trouble

    def _count(self, size: int) -> None:
        self._uncounted += size
        if self._uncounted >= COUNTED_BYTES:
            self._wrote(self._uncounted)
            self._uncounted = 0

    def drop(self) -> None:
        """Stop writing; a write under way does not count."""
        if self._uncounted:
            self._wrote(self._uncounted)
            self._uncounted = 0
        self._dropped = True
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
            self._wake()
        self._unwritten.clear()

    def _begin(self) -> None:
        if self._writing is None:
            self._sent = len(self._unwritten)
            self._writing = self._journal.put_nowait(
                self._keys, self._turn_id, list(self._unwritten), on_written=self._wake
            )

    async def _settled(self, within_s: float | None) -> None:
        """Wait for the write that is under way, if there is one; a timeout leaves it under way."""
        if self._writing is not None and not self._writing.done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                async with asyncio.timeout(within_s):
                    await waiter
            except TimeoutError:
                return
            finally:
                self._waiters.discard(waiter)

    def _wake(self) -> None:
        """Wake all waiters: tools of the turn write while its text grows."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _refuse_faults(self, trouble: StoreDown | None) -> None:
        if isinstance(trouble, StoreFault) and self._faults >= FAULTS:
            raise trouble

    def _collect(self) -> StoreDown | None:
        """Drop the stored entries; return the failure of a write. Raises OwnershipLost."""
        if self._writing is None or not self._writing.done():
            return None
        writing, self._writing = self._writing, None
        try:
            self.watched = writing.result()
        except StoreDown as trouble:
            self._late = True
            self._faults = self._faults + 1 if isinstance(trouble, StoreFault) else 0
            return trouble
        except OwnershipLost:
            self._dropped = True
            raise
        self._late = False
        self._faults = 0
        del self._unwritten[: self._sent]
        return None


RESUME_WINDOW_S = 300.0
"""How long a reader who left during a reply, which has ended since, can resume it to the character.

It has to cover a tunnel, a lift, a phone in a pocket, a restart of the service: minutes. A delta costs as much as forty
characters for that long. A later reader still gets every whole reply, and a gap in the one that was partly seen.
"""
LOOK_S = 5.0
LEASE_S = 60.0
TAKEN_AT_ONCE = 64
LISTS = 16
"""Lists of conversations; a cluster's nodes share them."""

_log = structlog.get_logger("midstream.compaction")


class Compaction:
    """Lists conversations, and compacts those whose time has come, by the store's clock.

    Empties journals of ended turns after the time in which readers may resume.
    """

    def __init__(self, client: Redis, *, ttl_s: float, window_s: float = RESUME_WINDOW_S) -> None:
        self._client = client
        self._window_ms = int(window_s * 1000)
        self._ttl_ms = int(ttl_s * 1000)

    async def schedule(self, keys: Keys) -> None:
        """List a conversation of which a turn has ended. Raises StoreDown."""
        arguments: list[str | bytes | int] = [keys.conversation, self._window_ms, self._ttl_ms]
        await run_script(self._client, SCHEDULE, [_list_of(keys.conversation)], arguments)

    async def forget(self, keys: Keys) -> None:
        """Remove a deleted conversation from the list. Raises StoreDown."""
        with store_errors():
            await self._client.zrem(_list_of(keys.conversation), keys.conversation)

    async def run(self) -> None:
        """Compact until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S * random.uniform(0.5, 1.5))
            try:
                await self.compact()
            except StoreDown:
                continue  # conversations that were taken are taken again after their lease
            except Exception:  # noqa: BLE001 - a task's boundary: one odd row must not end the service
                _log.exception("compaction failed")

    async def compact(self) -> int:
        """Compact all conversations whose time has come; return their number. Raises StoreDown."""
        done = 0
        for number in range(LISTS):
            try:
                done += await self._compact_all(_list(number))
            except StoreFault:  # reported there; the other lists are well
                continue
        return done

    async def _compact_all(self, listed: str) -> int:
        done = 0
        while True:
            lease, *taken = await run_script(
                self._client, TAKE_DUE, [listed], [TAKEN_AT_ONCE, int(LEASE_S * 1000)]
            )
            for name in taken:
                await self._compact(listed, name.decode(), lease)
            done += len(taken)
            if len(taken) < TAKEN_AT_ONCE:
                return done

    async def _compact(self, listed: str, name: str, lease: bytes) -> None:
        try:
            again_ms = await run_script(self._client, COMPACT, Keys.named(name).pair(), [self._window_ms])
        except StoreFault:  # reported there; its next turn lists it again
            again_ms = 0
        await run_script(self._client, SETTLE_DUE, [listed], [name, lease, int(again_ms)])


def _list_of(conversation: str) -> str:
    return _list(zlib.crc32(conversation.encode()) % LISTS)


def _list(number: int) -> str:
    return f"ms:compaction:{{{number}}}"
