"""Counts the bytes that are stored for each owner, and for all owners of a key or an address, and refuses what is too much.

Also measures the store's memory.

Owners and groups may hold a part of what is free in the store, as `sessions.limits.shares` has it: the fuller the store, the smaller is each
share, so a few can't take all of it. Redis holds the counts, by the time at which the bytes expire (`ledger.lua`):

- What a message, an upload or an image will write is counted before it is written, in a round trip that is made anyway. The count
  lasts as long as the journal: from then on the conversation itself is counted.
- A conversation is weighed when a turn of it ends (`WEIGH` in `ledger.lua`). The ledgers take the difference up to a second later, in batches.

The counts are approximate. What was written in the last minutes may count twice. Expired bytes count for up to an eighth of their
lifetime longer. A crash, or an outage, may lose a second of differences, until what they count has expired.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, cast

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.client import Pipeline

from sessions.errors import Refused, StoreDown, StoreFault
from sessions.limits.shares import Subject, group_limit, owner_limit
from sessions.limits.slots import as_service
from sessions.store.client import ADMIT, CHARGE, pipelined, queue_script
from sessions.store_errors import CLIENT_ERRORS, store_errors

GROWTH_PART = 0.8
"""The part of the store's memory that growth may fill."""
MEASURE_S = 1.0
FULL_S = 0.1
"""How long a full store is taken to be full before it is measured again: something may have been deleted."""
UNSEEN_PART = 1 / 256
"""A replica measures again at once when it has written this part of the store's memory since the last measurement."""
MACHINES_PART = 0.75
"""The part of its machine's memory that a store without a limit of its own may take."""
UNKNOWN_BYTES = 1024**3
"""The size that is assumed for a store that reports neither its limit nor its machine's memory."""


class ServerMemory(msgspec.Struct, frozen=True):
    """One server's memory in bytes. `limit`: None if unknown; then `used` does not limit growth."""

    used: int
    limit: int | None

    @property
    def free(self) -> int:
        """What growth may still take; negative if the reserve is in use."""
        if self.limit is None:
            return int(UNKNOWN_BYTES * GROWTH_PART)
        return int(self.limit * GROWTH_PART) - self.used


class Memory:
    """The memory of the store's servers. `run` must be running for it to be up to date.

    Growth stops below the limit; the rest is a reserve for running replies, reading and deleting.
    """

    def __init__(self, client: Redis, *, most_bytes: int | None = None) -> None:
        """`most_bytes`: the operator's limit for each server; None: the server's own."""
        self._client = client
        self._most_bytes = most_bytes
        self._measuring = asyncio.Lock()
        self._grown = 0  # since the last measurement
        self._grown_before = 0  # between the last two
        self._measured_at = -math.inf
        self.servers: tuple[ServerMemory, ...] = ()
        """As measured; empty before the first measurement."""

    @property
    def free(self) -> int:
        """Bytes that growth may still take on the fullest server.

        Admissions just before a measurement are subtracted again, since it may lack them.
        """
        least = min((server.free for server in self.servers), default=0)
        return least - self._grown - self._grown_before

    @property
    def is_full(self) -> bool:
        """Whether growth has to be refused."""
        return bool(self.servers) and self.free <= 0

    def grew(self, size: int) -> None:
        """Count bytes that are about to be written."""
        self._grown += size

    async def up_to_date(self) -> None:
        """Measure if there is no measurement yet, the store was full, or much was written since. Raises StoreDown."""
        if self._is_stale:
            async with self._measuring:
                if self._is_stale:
                    await self._measure()

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            await asyncio.sleep(MEASURE_S)
            try:
                async with self._measuring:
                    await self._measure()
            except StoreDown:
                continue  # whoever needs the store reports it

    @property
    def _is_stale(self) -> bool:
        limits = [server.limit for server in self.servers if server.limit is not None]
        was_full = self.free <= 0 and monotonic() - self._measured_at > FULL_S
        return was_full or self._grown > min(limits, default=UNKNOWN_BYTES) * UNSEEN_PART

    async def _measure(self) -> None:
        with as_service(), store_errors():
            found = await _measured(self._client)
        self._grown, self._grown_before = 0, self._grown
        self._measured_at = monotonic()
        self.servers = tuple(self._server(facts) for facts in found)

    def _server(self, facts: dict[str, Any]) -> ServerMemory:
        used = facts.get("used_memory", 0) - facts.get("mem_not_counted_for_evict", 0)
        limit = facts.get("maxmemory") or int(facts.get("total_system_memory", 0) * MACHINES_PART) or None
        limits = [size for size in (self._most_bytes, limit) if size is not None]
        return ServerMemory(used, min(limits, default=None))


async def _measured(client: Redis) -> list[dict[str, Any]]:
    cluster = cast("object", client)
    if not isinstance(cluster, RedisCluster):
        return [await client.info("memory")]
    await cluster.initialize()
    found, trouble = [], None
    for node in cluster.get_primaries():
        try:
            found.append(await cluster.info("memory", target_nodes=node))
        except CLIENT_ERRORS as error:  # the other masters work without it
            trouble = error
    if trouble is not None and not found:
        raise trouble
    return found


JOURNAL_S = 900.0
"""How long bytes of a journal count: while a reply is written, until the journal expires, and a while longer."""
MESSAGE_BYTES = 2048
"""Bytes that a message takes in addition to its text: its turn's records, and rows of lists."""
COPIES = 2
"""A message's text is in the history and in the journal."""
EVENT_BYTES = 48
"""Bytes that an event in the journal takes in addition to its own."""
SHARE_BYTES = 512
ONCE_PART = 8
"""What is written at once may take an eighth of what is free: other replicas, which don't see it yet, may write as much."""
SETTLE_S = 1.0
BATCH = 128
"""Ledgers that are changed in one round trip."""

_LINE = "The store has no room for this until something is deleted or expires. Reading and deleting work."


class StoreFull(Refused):
    """The store has no more room: for this owner, for this key or address, or for anybody."""

    code = "store_full"


class Admission(msgspec.Struct, frozen=True):
    """New bytes, to be counted in ledgers that one script can access."""

    ledgers: tuple[str, ...]
    args: tuple[int, ...]
    """The arguments of `admit.lua`: bytes, their lifetime (ms), the most bytes of each ledger."""

    def queue(self, pipe: Pipeline) -> None:
        """Add the admission to a pipeline; `Ledger.check` reads the answer."""
        queue_script(pipe, ADMIT, self.ledgers, self.args)

    def check(self, answer: int | None) -> None:
        """Raise StoreFull unless the bytes were admitted. `answer`: the number of the full ledger; None: admitted."""
        if answer is None:
            return
        is_group = self.ledgers[answer - 1].startswith(_GROUPS)
        whose = "Your key, or your address," if is_group else "You"
        has = "has" if is_group else "have"
        raise StoreFull(
            f"{whose} {has} stored as much as the free part of the store allows ({_size(self.args[answer + 1])}). "
            "Delete conversations, or wait until some expire."
        )


class Ledger:
    """The ledgers of all owners and groups. `run` must be running. Methods that wait raise StoreDown."""

    def __init__(self, client: Redis, memory: Memory | None = None) -> None:
        self._client = client
        self._apart = isinstance(cast("object", client), RedisCluster)
        self._pending: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._wake = asyncio.Event()
        self.memory = memory or Memory(client)

    async def admit(self, subject: Subject, size: int, *, lifetime_s: float) -> None:
        """Count bytes that are about to be written; with a lifetime of 0, only check that there is room. Raises StoreFull."""
        admissions = await self.admissions(subject, size, lifetime_s=lifetime_s)

        def queue(pipe: Pipeline) -> None:
            for admission in admissions:
                admission.queue(pipe)

        self.check(admissions, await pipelined(self._client, queue))

    def check(self, admissions: Sequence[Admission], answers: Sequence[Any]) -> None:
        """Check the store's answers to admissions. Raises StoreFull if one is refused: then no bytes are written or count."""
        try:
            for admission, answer in zip(admissions, answers, strict=False):
                admission.check(answer)
        except StoreFull:
            size, lifetime_ms, *_ = admissions[0].args
            self.memory.grew(-size if lifetime_ms else 0)
            raise

    async def admissions(self, subject: Subject, size: int, *, lifetime_s: float) -> list[Admission]:
        """Return what `admit` sends, for a caller's own pipeline. The first one has the owner's ledger. Raises StoreFull."""
        await self.memory.up_to_date()
        free = self.memory.free
        if free <= 0 or size > free // ONCE_PART:
            raise StoreFull(_LINE)
        self.memory.grew(size if lifetime_s else 0)
        ledgers = tuple(_ledgers(subject))
        mosts = (owner_limit(free), group_limit(subject.group, free * len(self.memory.servers)))
        args = (size, int(lifetime_s * 1000))
        if not self._apart:
            return [Admission(ledgers, (*args, *mosts[: len(ledgers)]))]
        return [Admission((one,), (*args, most)) for one, most in zip(ledgers, mosts, strict=False)]

    def journalled(self, subject: Subject, size: int) -> None:
        """Count bytes of a journal."""
        self.memory.grew(size)
        for ledger in _ledgers(subject):
            self._pending[ledger][int(JOURNAL_S * 1000)] += size
        self._wake.set()

    def recharge(self, owner: str, notes: Sequence[bytes]) -> None:
        """Count conversations and images as they were weighed. `notes`: pairs of what counted before and what counts now."""
        for before, after in zip(notes[::2], notes[1::2], strict=True):
            self._note(owner, before, -1)
            self._note(owner, after, 1)
        self._wake.set()

    def _note(self, owner: str, note: bytes, times: int) -> None:
        if not note:
            return
        field, size, group = note.decode().split(" ", 2)
        for ledger in _ledgers(Subject(owner, group)):
            self._pending[ledger][int(field)] += times * int(size)

    async def deleted(self, owner: str, notes: Sequence[bytes]) -> None:
        """Stop counting what was deleted, at once if the store answers. `notes`: what was counted."""
        self.recharge(owner, [part for note in notes for part in (note, b"")])
        with suppress(StoreDown):  # `run` settles it later
            await self.settle()

    async def forget(self, owner: str) -> None:
        """Delete an owner's ledger: nothing of the owner is left."""
        ledger = f"{_OWNERS}{{{owner}}}"
        self._pending.pop(ledger, None)
        with store_errors():
            await self._client.unlink(ledger)

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(SETTLE_S)
            with suppress(StoreDown):
                await self.settle()

    async def settle(self) -> None:
        """Write the differences so far."""
        pending, self._pending = self._pending, defaultdict(Counter)
        self._wake.clear()
        left = list(pending)
        try:
            while ledgers := left[:BATCH]:
                with suppress(StoreFault):  # logged where it is raised; weighing counts these again
                    await pipelined(
                        self._client, partial(_queue, {ledger: pending[ledger] for ledger in ledgers})
                    )
                del left[: len(ledgers)]
        finally:
            for ledger in left:
                self._pending[ledger].update(pending[ledger])
                self._wake.set()


_OWNERS, _GROUPS = "ms:stored:", "ms:stored-by:"


def _ledgers(subject: Subject) -> Iterator[str]:
    """Yield the names of an owner's ledger and its group's. A person with an API key is both, and has only one."""
    yield f"{_OWNERS}{{{subject.owner}}}"
    if subject.group and subject.owner != f"{subject.group}/":
        yield f"{_GROUPS}{{{subject.group}}}"


def _queue(pending: dict[str, Counter[int]], pipe: Pipeline) -> None:
    for ledger, changes in pending.items():
        if args := [part for field, size in changes.items() if size for part in (field, size)]:
            queue_script(pipe, CHARGE, [ledger], args)


def _size(size: int) -> str:
    return f"{size // 1024**2} MiB" if size >= 1024**2 else f"{max(0, size) // 1024} KiB"
