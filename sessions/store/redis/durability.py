"""Waits until a write is durable enough to be published.

A server reports what its replicas have of the writes of the same connection. So an empty write, later than those that must be
safe, precedes the question.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any, cast

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import PipelineCommand
from redis.exceptions import MovedError, ResponseError

from sessions.errors import StoreDown
from sessions.store.redis.client import store_errors
from sessions.store.redis.servers import CALL_S, InstrumentedPool

WAIT_MS = 1000
"""How long an `accepted` or a `done` waits. After that the message is refused, or the reply is reported as not saved."""


class Durability(StrEnum):
    """What an `accepted` or a `done` waits for."""

    MEMORY = "memory"
    """The store's answer, which it may give before its disk has the write."""
    DISK = "disk"
    """The store's answer, which it gives once its disk has the write (`appendfsync always`; see `checked_server_configs`).

    WAITAOF is not used. With `appendfsync everysec` it waits up to a second, and Valkey 8.0 to 9.1 and Redis 7.4.0 to 7.4.2 answer
    it before the fsync (redis/redis#13793).
    """
    REPLICATED = "replicated"
    """The memory of one of its replicas too (WAIT)."""


class DurabilityUnsupported(Exception):
    """The store does not support this durability. The message is for the operator."""


class WriteConfirmer:
    """Waits until earlier writes are durable enough."""

    def __init__(self, client: Redis, durability: Durability) -> None:
        self._client = client
        self._needs_replica = durability is Durability.REPLICATED
        pool = getattr(client, "connection_pool", None)  # a cluster has none
        self._sentinels = pool.sentinels if isinstance(pool, InstrumentedPool) else None

    @property
    def term(self) -> int:
        """Number that changes with each failover by Sentinels; 0 where there are none."""
        return self._sentinels.term if self._sentinels is not None else 0

    async def confirm(self, key: str, *, ttl_ms: int, term: int) -> None:
        """Wait until all earlier writes to the key's server are durable. Raises StoreDown if it takes too long.

        `term`: as it was before the writes; StoreDown is raised too if a failover began since: they may be lost with it.
        """
        with store_errors():
            if self._needs_replica and not await self._send_commands(
                ("PEXPIRE", key, ttl_ms), ("WAIT", 1, WAIT_MS)
            ):
                raise StoreDown(f"The store did not confirm a write within {WAIT_MS} ms.")
            if self._sentinels is not None:
                await self._sentinels.confirm(term)

    async def check(self) -> None:
        """Raise DurabilityUnsupported if the store can't confirm writes, StoreDown if it does not answer."""
        if not self._needs_replica:
            return
        with store_errors():
            try:
                await self._send_commands(("EXISTS", "ms:runners"), ("WAIT", 1, 1))
            except ResponseError as error:
                raise DurabilityUnsupported(str(error)) from error

    async def _send_commands(self, *commands: tuple[str | int, ...]) -> Any:
        """Send commands over one connection to the server of the first one's key; return the last answer."""
        cluster = cast("object", self._client)
        if isinstance(cluster, RedisCluster):
            async with asyncio.timeout(CALL_S):
                return await _ask_in_cluster(cluster, commands)
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return (await pipe.execute())[-1]


async def _ask_in_cluster(cluster: RedisCluster, commands: tuple[tuple[str | int, ...], ...]) -> Any:
    """A cluster's pipelines know no commands without keys.

    If the key has moved, it raises MovedError: what its new server's replicas have says nothing about a write to the old one.
    """
    key = str(commands[0][1])
    await cluster.initialize()
    batch = [PipelineCommand(place, *command) for place, command in enumerate(commands)]
    node = cluster.get_node_from_key(key)
    if node is None:
        raise StoreDown("No node has the slot of a conversation.")
    await node.execute_pipeline(batch)
    failed = next((one.result for one in batch if isinstance(one.result, Exception)), None)
    if isinstance(failed, MovedError):
        await cluster.exists(key)  # the client learns where the slot is
    if failed is not None:
        raise failed
    return batch[-1].result
