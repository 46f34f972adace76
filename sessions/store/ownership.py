"""Records which replica runs which turn, so that another one can close a dead replica's turns.

A replica holds a lease while it lives. It lists its running turns in a hash of its own, which others read only once the lease
has expired. A set names all replicas that may have turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, cast

import msgspec
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from sessions.errors import StoreDown, StoreFault
from sessions.records import Owner
from sessions.store.client import PUT, pipelined, run_script
from sessions.store_errors import store_errors

LEASE_S = 8.0
RENEW_S = 2.5
SETTLE_S = LEASE_S
"""How long the store must have answered each look before a replica without a lease counts as dead.

A living replica renews its lease within `RENEW_S` after an outage, or later by the duration of a call that hung.
"""
LOOK_AGAIN_S = 2 * RENEW_S
"""Looks that are further apart may have missed an outage in which leases expired."""
FORMAT = 6
"""Version of what a replica writes, kept in its lease. A lower version can't read what a higher one writes."""
_RUNNERS = "ms:runners"

_log = structlog.get_logger("midstream.reaper")


class RunningTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has not ended, and the replica that runs it."""

    owner: Owner
    conversation_id: str
    turn_id: str
    replica: str


_decode = msgspec.json.Decoder(RunningTurn).decode


class Ownership:
    """The lease of this replica, and its turns. Methods raise StoreDown."""

    def __init__(self, client: Redis, *, replica: str, priority_client: Redis | None = None) -> None:
        """`priority_client`: a separate client of the store for what must not wait behind requests: the lease and turns' ends."""
        self._client = client
        self._priority_client = priority_client or client
        self.replica = replica
        self._own: dict[str, RunningTurn] = {}
        self._held_until = 0.0
        self._checked_at, self._settles_at = inf, -inf
        self._unread: set[bytes] = set()
        self.taken = 0
        """How often the lease was taken. More than once means that it expired, and others may have taken turns over."""

    async def keep(self) -> None:
        """Renew the lease until cancelled."""
        while True:
            with suppress(StoreDown):  # writers report it; the lease is tried again
                await self.renew()
            await asyncio.sleep(RENEW_S)

    async def renew(self) -> None:
        """Take or extend the lease, even in a full store.

        The set of replicas is written after the lease: a replica that removes a dead one from the set checks the lease once more.
        """
        requested_at = monotonic()
        lease_ms = int(LEASE_S * 1000)
        with store_errors():
            if not await self._priority_client.pexpire(_lease(self.replica), lease_ms):
                await run_script(self._priority_client, PUT, [_lease(self.replica)], [FORMAT, lease_ms])
                self.taken += 1
                self._note_check(lost=True)
            if not await self._priority_client.sismember(_RUNNERS, self.replica):
                await run_script(self._priority_client, PUT, [_RUNNERS], [self.replica])
        self._held_until = requested_at + LEASE_S

    async def is_alive(self, replica: str) -> bool:
        """Return whether a replica's lease holds, or may have expired only because the store was down."""
        return await self.holds_lease(replica) or not self._is_settled

    async def holds_lease(self, replica: str) -> bool:
        """Return whether a replica's lease holds at this moment."""
        with store_errors():
            return not await self._dead([replica])

    @property
    def _is_settled(self) -> bool:
        """Whether living replicas have had the time to renew their leases, since this replica started or saw the store fail."""
        return self._settles_at <= monotonic() <= self._checked_at + LOOK_AGAIN_S

    async def others(self) -> list[str]:
        """Return the other living replicas."""
        with store_errors():
            names = sorted(set(await self._runners()) - {self.replica})
            dead = set(await self._dead(names))
        return [name for name in names if name not in dead]

    async def release_lease(self) -> None:
        """End the lease: others may close this replica's turns at once."""
        with store_errors():
            await self._client.delete(_lease(self.replica))

    async def forget_other_leases(self) -> None:
        """End every other lease. Only for stores with one replica, such as the embedded one."""
        self._settles_at = -inf
        with store_errors():
            async for key in self._client.scan_iter(match=_lease("*")):
                if key.decode() != _lease(self.replica):
                    await self._client.delete(key)

    async def add(self, turn: RunningTurn, *, queue_writes: Callable[[Pipeline], None]) -> list[Any]:
        """Record a turn of this replica before it is accepted. An expired lease is taken again first.

        `queue_writes`: queues commands for the same round trip; their answers are returned.
        """
        self._own[turn.turn_id] = turn
        if monotonic() >= self._held_until:
            await self.renew()
        row = msgspec.json.encode(turn).decode()

        def queue(pipe: Pipeline) -> None:
            pipe.hset(_turns(self.replica), turn.turn_id, row)
            queue_writes(pipe)

        _, *answers = await pipelined(self._client, queue)
        return answers

    def relist(self, turns: Iterable[RunningTurn]) -> bool:
        """Give the reaper turns that run in the store's view, but at no replica; return whether one of them is new.

        Their rows may be lost: after an answer from a master that was just replaced, a replica drops a row too early.
        """
        lost = {turn.turn_id: turn for turn in turns if turn.turn_id not in self._own}
        self._own |= lost
        return bool(lost)

    async def find(self, turn_id: str) -> RunningTurn | None:
        """Return a turn that has not ended, of any replica; None if there is none."""
        if turn_id in self._own:
            return self._own[turn_id]
        with store_errors():
            pipe = self._client.pipeline(transaction=False)
            for key in map(_turns, await self._runners()):
                pipe.hget(key, turn_id)
            row = next(filter(None, await pipe.execute()), None)
        return _decode(row) if row else None

    async def discard(self, turn_id: str, *, replica: str | None = None) -> None:
        """Remove a turn that has ended, or was never accepted. `replica`: its replica, if not this one."""
        whose = replica or self.replica
        with store_errors():
            await self._priority_client.hdel(_turns(whose), turn_id)
        self._own.pop(turn_id, None)

    async def orphans(self, runs: Callable[[RunningTurn], bool]) -> list[RunningTurn]:
        """Return the turns of dead replicas, and this replica's turns that do not run here.

        A replica is dead if its lease has expired, and the store has worked for long enough for the replica to renew it.
        """
        try:
            return await self._orphans(runs)
        except BaseException:  # the store failed, or took too long
            self._checked_at = -inf
            raise

    async def _orphans(self, runs: Callable[[RunningTurn], bool]) -> list[RunningTurn]:
        with store_errors():
            await self._remember()
            left = [turn for turn in self._own.values() if not runs(turn)]
            others = {turn.replica for turn in left} | set(await self._runners())
            dead = set(await self._dead(others | {self.replica}))
        for turn in left:
            if turn.replica not in (self.replica, *dead):  # is back, and runs its turns itself
                del self._own[turn.turn_id]
        self._note_check(lost=self.replica in dead)
        if not self._is_settled:
            return [turn for turn in left if turn.replica == self.replica]
        left = [turn for turn in left if turn.turn_id in self._own]
        for replica in dead - {self.replica}:
            left += await self._turns_of(replica)
        return left

    def _note_check(self, *, lost: bool) -> None:
        """Note a look at a store that works. `lost`: this replica's lease is gone, so leases of other living ones may be."""
        now = monotonic()
        if lost or now > self._checked_at + LOOK_AGAIN_S:
            self._settles_at = now + SETTLE_S
        self._checked_at = now

    async def _turns_of(self, replica: str) -> list[RunningTurn]:
        """Return a dead replica's turns; none if its hash is unreadable, so that other replicas' turns can still be closed."""
        try:
            with store_errors():
                turns = await self._rows(_turns(replica))
                await self._forget(replica)
        except StoreFault:
            _log.warning("turns of a dead replica can't be read", replica=replica)
            return []
        return turns

    async def _remember(self) -> None:
        """Read this replica's turns if the store has more than are known here: a failover may bring rows back."""
        if await self._client.hlen(_turns(self.replica)) > len(self._own):
            self._own = {turn.turn_id: turn for turn in await self._rows(_turns(self.replica))} | self._own

    async def _forget(self, replica: str) -> None:
        """Remove a dead replica from the set once it has no turns, unless it came back."""
        if await self._client.exists(_turns(replica)):
            return
        await self._client.srem(_RUNNERS, replica)
        if await self._client.exists(_turns(replica), _lease(replica)):
            await self._client.sadd(_RUNNERS, replica)

    async def _runners(self) -> list[str]:
        names: Any = await cast("Awaitable[Any]", self._client.smembers(_RUNNERS))
        return [name.decode() for name in names]

    async def _dead(self, replicas: Iterable[str]) -> Sequence[str]:
        names = list(replicas)
        pipe = self._client.pipeline(transaction=False)
        for name in names:
            pipe.getex(
                _lease(name)
            )  # GETEX: refused by a server that takes no writes, where no lease can be renewed
        answers = await pipe.execute() if names else []
        return [name for name, lease in zip(names, answers, strict=True) if lease is None]

    async def _rows(self, key: str) -> list[RunningTurn]:
        rows = await cast("Awaitable[dict[bytes, bytes]]", self._client.hgetall(key))
        turns = {turn_id: self._read(turn_id, row) for turn_id, row in rows.items()}
        return [turn for turn in turns.values() if turn is not None]

    def _read(self, turn_id: bytes, row: bytes) -> RunningTurn | None:
        """Read a row; None if another version wrote it: a replica of that version closes the turn."""
        try:
            return _decode(row)
        except msgspec.DecodeError:
            if turn_id not in self._unread:
                self._unread.add(turn_id)
                _log.warning("running turn not understood", turn_id=turn_id.decode())
            return None


async def older_replicas(client: Redis) -> list[str]:
    """Return the living replicas that can't read what this version writes, by their leases. Raises StoreDown."""
    with store_errors():
        leases = [key async for key in client.scan_iter(match=_lease("*"))]
        formats = [await client.get(lease) for lease in leases]
    pairs = zip(leases, formats, strict=True)  # without a format: has left meanwhile
    return [key.decode().removeprefix(_lease("")) for key, kept in pairs if int(kept or FORMAT) < FORMAT]


def _lease(replica: str) -> str:
    return f"ms:replica:{replica}"


def _turns(replica: str) -> str:
    return f"ms:running:{replica}"
