"""How many connections each owner and group may hold, counted over all replicas or not at all."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address
from typing import Protocol, cast

import structlog
from redis.asyncio import Redis, RedisCluster

from connections.limits.quotas import LUA, quota_subjects
from connections.middleware import Address
from connections.protocol.errors import Close, CloseCode
from sessions.errors import StoreDown
from sessions.records import Client
from sessions.store.client import store_errors
from sessions.store.pool import never_heavy, with_heaviness

TIMEOUT_S = 0.25
RENEW_S = 3.0
LEASE_S = 10.0
KEPT_S = 3600.0
"""How long a set lives without a renewal; all are renewed twice in that time."""
BATCH = 500
_REPLICAS = "ms:replicas"
_log = structlog.get_logger("midstream.limits")
_Sets = dict[str, set[str]]
_Counted = tuple[str, str, int]


class ConnectionLeases(Protocol):
    """Connections of clients and keys, counted over all replicas."""

    async def acquire(self, client: Client, connection_id: str) -> None:
        """Count a connection. Raises Close if its client or its key has too many."""
        ...

    def release(self, client: Client, connection_id: str) -> None:
        """Stop counting it."""
        ...


class UnlimitedLeases:
    """Seats without a limit."""

    async def acquire(self, client: Client, connection_id: str) -> None:
        """There is room."""

    def release(self, client: Client, connection_id: str) -> None:
        """Nothing was counted."""


SHARE = 8
LEAST_SHARE = 16
HOUSEHOLD_BITS = 64
"""Prefix of an IPv6 address: a subscriber usually has a whole network."""


class HandshakeLimit:
    """Connections that are not admitted yet: their `hello` is awaited, or their token is being verified.

    One address has an eighth of the slots at most, and so have all clients whose address is not known, together. Clients of
    this machine have no such share.
    """

    def __init__(self, *, slots: int) -> None:
        self._free = slots
        self._share = max(LEAST_SHARE, slots // SHARE)
        self._taken: Counter[Address | None] = Counter()
        self.is_closed = False
        """Whether the server is about to stop, and accepts no connection."""

    @property
    def is_full(self) -> bool:
        """Return whether the next one has to be refused."""
        return self._free <= 0

    def is_full_for_address(self, address: Address | None) -> bool:
        """Return whether this address has its share. None: addresses that a proxy did not name; they have one share together."""
        return self._taken[_network_of(address)] >= self._share and not (address and address.is_loopback)

    @contextmanager
    def slot(self, address: Address | None) -> Iterator[None]:
        """Hold a slot while the block lasts."""
        network = _network_of(address)
        self._free -= 1
        self._taken[network] += 1
        try:
            yield
        finally:
            self._free += 1
            self._taken[network] -= 1
            if not self._taken[network]:
                del self._taken[network]


def _network_of(address: Address | None) -> Address | None:
    if not isinstance(address, IPv6Address):
        return address
    rest = 128 - HOUSEHOLD_BITS
    return IPv6Address(int(address) >> rest << rest)


def too_many_connections(network: str, limit: int) -> Close:
    """Return the close of a connection for which there is no room."""
    return Close(CloseCode.TOO_MANY_CONNECTIONS, f"A {network} has at most {limit} connections.")


class RedisConnectionLeases:
    """`ConnectionLeases` (`connections.limits.leases`). `run` must be running. None: no limit."""

    def __init__(
        self,
        client: Redis,
        *,
        max_per_client: int | None,
        max_per_key: int | None,
        replica: str | None = None,
    ) -> None:
        self._client = client
        self._is_cluster = isinstance(cast("object", client), RedisCluster)
        self._replica = replica or secrets.token_hex(8)
        self._limits = (max_per_client, max_per_key)
        self._others: list[str] = []
        self._held: _Sets = {}
        self._released: _Sets = {}
        self._wake = asyncio.Event()
        self._write_at = 0.0
        self._acquire_script = client.register_script((LUA / "sit.lua").read_text())
        self._renew_script = client.register_script((LUA / "beat.lua").read_text())

    async def acquire(self, client: Client, connection_id: str) -> None:
        """Count a connection. Raises Close if its client or its key has too many."""
        counted = self._counted(client)
        for _, subject, _ in counted:
            self._held.setdefault(subject, set()).add(connection_id)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                with with_heaviness(never_heavy):  # a wait behind others would lift the limits
                    full = await self._count(counted, connection_id)
        except (StoreDown, TimeoutError):
            self._write_at = 0.0  # counted with the next renewal that the store answers
            _log.warning("connection counting failed, all admitted")
            return
        except BaseException:
            self.release(client, connection_id)
            raise
        if full:
            self.release(client, connection_id)
            whose, _, limit = counted[full - 1]
            raise too_many_connections(whose, limit)

    def release(self, client: Client, connection_id: str) -> None:
        """Stop counting it, as soon as the store answers."""
        for _, subject, _ in self._counted(client):
            _discard(self._held, subject, connection_id)
            self._released.setdefault(subject, set()).add(connection_id)
        self._wake.set()

    async def run(self) -> None:
        """Renew this replica's sets, and remove ended connections, until cancelled."""
        while True:
            with suppress(StoreDown):  # the next new connection logs it
                await self.renew()
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._wake.wait()
            self._wake.clear()

    async def renew(self) -> None:
        """Do one round. Raises StoreDown."""
        with store_errors():
            alive = await self._renew_script(keys=[_REPLICAS], args=[self._replica, int(LEASE_S * 1000)])
        self._others = [name.decode() for name in alive if name.decode() != self._replica]
        await self._write_released()
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
        named = zip(("client", "key"), quota_subjects(client), self._limits, strict=True)
        return [(whose, subject, limit) for whose, subject, limit in named if limit is not None]

    async def _count(self, counted: Sequence[_Counted], connection_id: str) -> int:
        """Return 0, or the number of the first that is full. In a cluster a script sees one slot, that of one subject."""
        if not self._is_cluster:
            return await self._run_count_script(counted, connection_id)
        for number, one in enumerate(counted, start=1):
            if await self._run_count_script([one], connection_id):
                return number
        return 0

    async def _run_count_script(self, counted: Sequence[_Counted], connection_id: str) -> int:
        replicas = [self._replica, *self._others]
        keys: list[str] = []
        args: list[str | int] = [connection_id, int(KEPT_S * 1000)]
        for _, subject, limit in counted:
            keys += [_key(subject, replica) for replica in replicas]
            args += [len(replicas), limit]
        with store_errors():
            return int(await self._acquire_script(keys=keys, args=args))

    async def _write_released(self) -> None:
        left, self._released = self._released, {}
        try:
            for batch in _batches(left):
                with store_errors():
                    pipe = self._client.pipeline(transaction=False)
                    for subject in batch:
                        pipe.srem(_key(subject, self._replica), *left[subject])
                    await pipe.execute()
        except StoreDown:
            for subject, gone in left.items():
                self._released.setdefault(subject, set()).update(gone)
            raise

    async def _write_all(self) -> None:
        for batch in _batches(self._held):
            with store_errors():
                pipe = self._client.pipeline(transaction=False)
                for subject in batch:
                    if held := self._held.get(subject):
                        pipe.sadd(_key(subject, self._replica), *held)
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
