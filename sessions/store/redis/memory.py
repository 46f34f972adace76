"""Measures the store's memory: how much it may hold, and how much of that new messages and uploads may still take.

Growth stops well below the store's limit. The rest is a reserve: running replies end in it, and everybody can read, delete, and get
tickets. Each replica measures every second, and adds what it has written since.
"""

from __future__ import annotations

import asyncio
import math
from time import monotonic
from typing import Any, cast

import msgspec
from redis.asyncio import Redis, RedisCluster

from sessions.errors import StoreDown
from sessions.store.redis.client import CLIENT_ERRORS, store_errors
from sessions.store.redis.fair_slots import as_service

GROWTH_PART = 0.8
"""The part of the store's memory that growth may fill."""
MEASURE_S = 1.0
FULL_S = 0.1
"""How long a full store is taken to be full: something may have been deleted."""
UNSEEN_PART = 1 / 256
"""A replica measures again at once when it has written so large a part of the store's memory."""
MACHINES_PART = 0.75
"""The part of its machine's memory that a store without a limit of its own may take."""
UNKNOWN_BYTES = 1024**3
"""The size that is assumed for a store that reports neither its limit nor its machine's memory."""


class ServerMemory(msgspec.Struct, frozen=True):
    """One server's memory in bytes. `limit`: None if it is not known; then `used` stops nothing."""

    used: int
    limit: int | None

    @property
    def free(self) -> int:
        """What growth may still take; negative if the reserve is in use."""
        if self.limit is None:
            return int(UNKNOWN_BYTES * GROWTH_PART)
        return int(self.limit * GROWTH_PART) - self.used


class Memory:
    """The memory of the store's servers. `run` must be running for it to be up to date."""

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
        """Bytes that growth may still take on the fullest server. What was admitted just before a measurement may not be in it."""
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
        except CLIENT_ERRORS as error:  # the others serve on without it
            trouble = error
    if trouble is not None and not found:
        raise trouble
    return found
