"""Counts the connections of clients and keys over all replicas, in Redis.

Each replica has a set of its own for each client and key, which counts while the replica renews it: ten seconds after a kill it
counts for nothing. If the store does not answer, there is no limit.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import cast

import structlog
from redis.asyncio import Redis, RedisCluster

from connections.limits.quotas import subjects
from connections.limits.seats import no_seat
from connections.limits.shared_counts import LUA
from sessions.errors import StoreDown
from sessions.records import Client
from sessions.store.redis.asker import crowding, nobody
from sessions.store.redis.client import store_errors

PATIENCE_S = 0.25
BEAT_S = 3.0
ALIVE_S = 10.0
KEPT_S = 3600.0
"""How long a set lives without a renewal; all are renewed twice in that time."""
BATCH = 500
_REPLICAS = "ms:replicas"

_log = structlog.get_logger("midstream.limits")

_Sets = dict[str, set[str]]
_Counted = tuple[str, str, int]


class SharedSeats:
    """`Seats` (`connections.limits.seats`). `run` must be running. None: no limit."""

    def __init__(
        self,
        client: Redis,
        *,
        max_per_client: int | None,
        max_per_key: int | None,
        replica: str | None = None,
    ) -> None:
        self._client = client
        self._apart = isinstance(cast("object", client), RedisCluster)
        self._replica = replica or secrets.token_hex(8)
        self._limits = (max_per_client, max_per_key)
        self._others: list[str] = []
        self._seated: _Sets = {}
        self._left: _Sets = {}
        self._wake = asyncio.Event()
        self._write_at = 0.0
        self._sit = client.register_script((LUA / "sit.lua").read_text())
        self._beat = client.register_script((LUA / "beat.lua").read_text())

    async def sit(self, client: Client, connection_id: str) -> None:
        """Count a connection. Raises Close if its client or its key has too many."""
        counted = self._counted(client)
        for _, subject, _ in counted:
            self._seated.setdefault(subject, set()).add(connection_id)
        try:
            async with asyncio.timeout(PATIENCE_S):
                with crowding(nobody):  # a wait behind others would lift the limits
                    full = await self._ask(counted, connection_id)
        except (StoreDown, TimeoutError):
            self._write_at = 0.0  # counted with the next renewal that the store answers
            _log.warning("connections can't be counted: all are admitted")
            return
        except BaseException:
            self.leave(client, connection_id)
            raise
        if full:
            self.leave(client, connection_id)
            whose, _, limit = counted[full - 1]
            raise no_seat(whose, limit)

    def leave(self, client: Client, connection_id: str) -> None:
        """Stop counting it, as soon as the store answers."""
        for _, subject, _ in self._counted(client):
            _discard(self._seated, subject, connection_id)
            self._left.setdefault(subject, set()).add(connection_id)
        self._wake.set()

    async def run(self) -> None:
        """Renew this replica's sets, and remove ended connections, until cancelled."""
        while True:
            with suppress(StoreDown):  # the next new connection logs it
                await self.beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._wake.wait()
            self._wake.clear()

    async def beat(self) -> None:
        """Do one round. Raises StoreDown."""
        with store_errors():
            alive = await self._beat(keys=[_REPLICAS], args=[self._replica, int(ALIVE_S * 1000)])
        self._others = [name.decode() for name in alive if name.decode() != self._replica]
        await self._tell_left()
        now = asyncio.get_running_loop().time()
        if now >= self._write_at:
            await self._write_all()
            self._write_at = now + KEPT_S / 2

    async def end(self) -> None:
        """Remove all sets of this replica. Raises StoreDown."""
        with store_errors():
            await self._client.zrem(_REPLICAS, self._replica)

    def _counted(self, client: Client) -> list[_Counted]:
        """Return the limited subjects: kind, name in the store, limit."""
        named = zip(("client", "key"), subjects(client), self._limits, strict=True)
        return [(whose, subject, limit) for whose, subject, limit in named if limit is not None]

    async def _ask(self, counted: Sequence[_Counted], connection_id: str) -> int:
        """Return 0, or the number of the first that is full. In a cluster a script sees one slot, that of one subject."""
        if not self._apart:
            return await self._ask_at_once(counted, connection_id)
        for number, one in enumerate(counted, start=1):
            if await self._ask_at_once([one], connection_id):
                return number
        return 0

    async def _ask_at_once(self, counted: Sequence[_Counted], connection_id: str) -> int:
        replicas = [self._replica, *self._others]
        keys: list[str] = []
        args: list[str | int] = [connection_id, int(KEPT_S * 1000)]
        for _, subject, limit in counted:
            keys += [_key(subject, replica) for replica in replicas]
            args += [len(replicas), limit]
        with store_errors():
            return int(await self._sit(keys=keys, args=args))

    async def _tell_left(self) -> None:
        left, self._left = self._left, {}
        try:
            for batch in _batches(left):
                with store_errors():
                    pipe = self._client.pipeline(transaction=False)
                    for subject in batch:
                        pipe.srem(_key(subject, self._replica), *left[subject])
                    await pipe.execute()
        except StoreDown:
            for subject, gone in left.items():
                self._left.setdefault(subject, set()).update(gone)
            raise

    async def _write_all(self) -> None:
        for batch in _batches(self._seated):
            with store_errors():
                pipe = self._client.pipeline(transaction=False)
                for subject in batch:
                    if sitting := self._seated.get(subject):
                        pipe.sadd(_key(subject, self._replica), *sitting)
                        pipe.pexpire(_key(subject, self._replica), int(KEPT_S * 1000))
                await pipe.execute()


def _discard(sets: _Sets, subject: str, connection_id: str) -> None:
    sets.get(subject, set()).discard(connection_id)
    if not sets.get(subject):
        sets.pop(subject, None)


def _batches(sets: _Sets) -> Iterable[list[str]]:
    names = list(sets)
    return (names[at : at + BATCH] for at in range(0, len(names), BATCH))


def _key(subject: str, replica: str) -> str:
    return f"ms:seats:{subject}:{replica}"
