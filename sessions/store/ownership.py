"""Which replica runs which turn, so that a dead replica's turns can be closed by another.

A replica holds a lease while it lives; a hash names the turns that have no end yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import msgspec
from redis.asyncio import Redis

from sessions.errors import StoreDown
from sessions.records import Owner
from sessions.store.client import store_errors

LEASE_S = 8.0
RENEW_S = 2.5
_RUNNING = "ms:running"


class RunningTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has no end yet, and the replica that runs it."""

    owner: Owner
    conversation_id: str
    turn_id: str
    replica: str


_decode = msgspec.json.Decoder(RunningTurn).decode


class Ownership:
    """The lease of this replica and the list of running turns. Methods raise StoreDown."""

    def __init__(self, client: Redis, *, replica: str) -> None:
        self._client = client
        self.replica = replica

    async def keep(self) -> None:
        """Renews the lease until cancelled."""
        while True:
            with suppress(StoreDown):  # told by whoever writes; the lease is tried again
                await self.renew()
            await asyncio.sleep(RENEW_S)

    async def renew(self) -> None:
        """Takes or prolongs the lease; a store without memory lets it be prolonged still."""
        lease_ms = int(LEASE_S * 1000)
        with store_errors():
            if not await self._client.pexpire(_lease(self.replica), lease_ms):
                await self._client.set(_lease(self.replica), b"1", px=lease_ms)

    async def lives(self, replica: str) -> bool:
        """Whether a replica's lease holds."""
        with store_errors():
            return bool(await self._client.exists(_lease(replica)))

    async def give_up(self) -> None:
        """Ends the lease: what this replica ran may be closed by others at once."""
        with store_errors():
            await self._client.delete(_lease(self.replica))

    async def forget_other_leases(self) -> None:
        """Ends every other lease: only where no other replica can be alive, as with the embedded store."""
        with store_errors():
            async for key in self._client.scan_iter(match=_lease("*")):
                if key.decode() != _lease(self.replica):
                    await self._client.delete(key)

    async def add(self, turn: RunningTurn) -> None:
        """Names a turn before it is accepted."""
        with store_errors():
            await self._client.hset(_RUNNING, turn.turn_id, msgspec.json.encode(turn).decode())

    async def find(self, turn_id: str) -> RunningTurn | None:
        """A turn that has no end yet."""
        with store_errors():
            row = await cast("Awaitable[bytes | None]", self._client.hget(_RUNNING, turn_id))
        return _decode(row) if row else None

    async def discard(self, turn_id: str) -> None:
        """Forgets a turn that has its end, or that was never accepted."""
        with store_errors():
            await self._client.hdel(_RUNNING, turn_id)

    async def orphans(self, runs: Callable[[RunningTurn], bool]) -> list[RunningTurn]:
        """The turns of replicas whose lease ran out, and those of this one that it does not run."""
        with store_errors():
            turns = [
                _decode(row) for row in await cast("Awaitable[list[bytes]]", self._client.hvals(_RUNNING))
            ]
            replicas = {turn.replica for turn in turns} - {self.replica}
        dead = {name for name in replicas if not await self.lives(name)}
        return [turn for turn in turns if turn.replica in dead or self._left(turn, runs)]

    def _left(self, turn: RunningTurn, runs: Callable[[RunningTurn], bool]) -> bool:
        return turn.replica == self.replica and not runs(turn)


def _lease(replica: str) -> str:
    return f"ms:replica:{replica}"
