"""Probes whether every server of the store takes a message's writes, with the configured durability."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import OutOfMemoryError, SlotNotCoveredError

from sessions.errors import StoreDown
from sessions.store.redis.client import store_errors
from sessions.store.redis.servers import WAIT_MS, Durability, WriteConfirmer

PROBE_MS = 10_000
"""How long a probe's key lives."""
READ_S = 1.0
WRITE_S = 1.0 + WAIT_MS / 1000
MOST_SERVERS = 64
"""Masters of a cluster that are probed; further ones are not."""
_NAMES = tuple(f"ms:probe:{number}" for number in range(16 * MOST_SERVERS))
"""Keys across the slots, so that each master with its share of slots has one."""


class WritesRefused(StoreDown):
    """The store can be read, but a message could not be written."""


class OutOfMemory(WritesRefused):
    """The store can be read, and has no memory for a write."""


class WriteProbe:
    """Probe the store with a small write on each server, confirmed as an `accepted` is."""

    def __init__(self, client: Redis, durability: Durability) -> None:
        self._client = client
        self._confirmer = WriteConfirmer(client, durability)

    async def check(self) -> None:
        """Raises WritesRefused if some messages would be refused, StoreDown if the store does not answer."""
        try:
            async with asyncio.timeout(READ_S):
                keys = await self._keys()
        except TimeoutError as late:
            raise StoreDown(f"The store does not answer ({type(late).__name__}).") from late
        if None in keys:
            raise WritesRefused("The store has slots that no server serves.")
        for key in keys.values():  # one by one: the client closes all connections of a cluster if one fails
            try:
                await self._write(key)
            except (StoreDown, TimeoutError) as trouble:
                whose = f" on one of its {len(keys)} masters" if len(keys) > 1 else ""
                cause = trouble.__cause__ or trouble
                refuses = OutOfMemory if isinstance(cause, OutOfMemoryError) else WritesRefused
                raise refuses(
                    f"The store can be read, but takes no writes{whose} ({type(cause).__name__})."
                ) from trouble

    async def _write(self, key: str) -> None:
        term = self._confirmer.term
        async with asyncio.timeout(WRITE_S):
            with store_errors():
                await self._client.set(key, b"1", px=PROBE_MS)
            await self._confirmer.confirm(key, ttl_ms=PROBE_MS, term=term)

    async def _keys(self) -> Mapping[str | None, str]:
        """Return a key for each server; None stands for slots without a server."""
        cluster = cast("object", self._client)
        with store_errors():
            if not isinstance(cluster, RedisCluster):
                await self._client.ping()
                return {"": _NAMES[0]}
            await cluster.initialize()
        masters = min(len(cluster.get_primaries()), MOST_SERVERS)
        found: dict[str | None, str] = {}
        for name in _NAMES:
            found.setdefault(_server_of(cluster, name), name)
            if len(found) - (None in found) >= masters:
                break
        return found


def _server_of(cluster: RedisCluster, key: str) -> str | None:
    try:
        node = cluster.get_node_from_key(key)
    except SlotNotCoveredError:
        return None
    return None if node is None else node.name
