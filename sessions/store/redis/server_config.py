"""Reads how the store is set up, as far as it says, and what an operator should know of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.exceptions import BusyLoadingError, ResponseError

from sessions.store.redis.client import store_errors
from sessions.store.redis.servers import Durability, DurabilityUnsupported, WriteConfirmer

_WITHOUT_FILE = {
    False: "The store writes nothing to disk (appendonly no, no save): a restart of it loses every conversation.",
    True: "The store writes snapshots alone (appendonly no): a restart of it loses everything since the last one.",
    None: "The store has no append-only file: a restart of it can lose everything, or everything since a snapshot.",
}
"""What a store without an append-only file loses, by whether it writes snapshots."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server's setup. None: it does not say, as managed ones that forbid CONFIG."""

    policy: str | None
    max_memory: int | None
    append_only: bool | None
    fsync: str | None
    snapshots: bool | None
    replicas: int | None

    @property
    def evicts(self) -> bool:
        """Whether it evicts keys when its memory is full."""
        return self.policy not in (None, "noeviction") and self.max_memory != 0


async def server_configs(client: Redis) -> list[ServerConfig]:
    """Return the setup of the server, or of each master of a cluster. Raises StoreDown."""
    cluster = cast("object", client)
    with store_errors():
        if not isinstance(cluster, RedisCluster):
            return [await _read_config(client)]
        await cluster.initialize()
        return [await _read_config(client, node) for node in cluster.get_primaries()]


async def checked_server_configs(client: Redis, durability: Durability) -> list[ServerConfig]:
    """Return the setups, if the store can have this durability as far as it says. Raises DurabilityUnsupported, StoreDown."""
    await WriteConfirmer(client, durability).check()
    found = await server_configs(client)
    if durability is Durability.DISK and any(
        one.append_only is False or one.fsync not in (None, "always") for one in found
    ):
        raise DurabilityUnsupported(
            "disk needs a store that writes to its disk before it answers: set appendonly yes and appendfsync always in the store."
        )
    return found


def config_warnings(found: Iterable[ServerConfig], durability: Durability) -> list[str]:
    """Return warnings about them, as sentences, each once."""
    return list(dict.fromkeys(sentence for setup in found for sentence in _sentences(setup, durability)))


def _sentences(setup: ServerConfig, durability: Durability) -> list[str]:
    sentences = []
    if setup.evicts:
        sentences.append(
            f"The store evicts keys when its memory is full (maxmemory-policy {setup.policy}): conversations may vanish, "
            "whole or in part. Set maxmemory-policy to noeviction."
        )
    if setup.max_memory == 0:
        sentences.append(
            "The store has no limit of its own (maxmemory 0): it may take its machine's memory. Set maxmemory; until then it is "
            "taken to be three quarters of the machine, or MIDSTREAM_STORE_BYTES."
        )
    if (loss := _loss(setup, durability)) is not None:
        sentences.append(loss)
    if durability is Durability.REPLICATED and setup.replicas == 0:
        sentences.append(
            "The store has no replica at the moment (store_durability replicated): messages are refused until it has one."
        )
    return sentences


def _loss(setup: ServerConfig, durability: Durability) -> str | None:
    """Return what the store can lose of what was acknowledged, and how to prevent it."""
    if setup.append_only is False:
        return _WITHOUT_FILE[setup.snapshots]
    match setup.fsync:
        case "no":
            return (
                "The operating system decides when the store's writes reach its disk (appendfsync no): a power failure can lose "
                "the last half minute of acknowledged messages. Set appendfsync always in the store."
            )
        case "everysec" if durability is Durability.MEMORY:
            return (
                "The store writes to its disk once a second (appendfsync everysec): a power failure, or a kill of the store while "
                "its disk is busy, can lose the last two seconds of acknowledged messages. Set appendfsync always in the store."
            )
        case None if durability is not Durability.REPLICATED:
            return (
                "The store does not say how it writes to its disk (CONFIG GET is forbidden): unless appendonly is yes and "
                "appendfsync always, a power failure can lose acknowledged messages."
            )
    return None


async def _read_config(client: Redis, node: ClusterNode | None = None) -> ServerConfig:
    where: dict[str, Any] = {} if node is None else {"target_nodes": node}
    persistence: Any = await client.info("persistence", **where)
    if persistence.get("loading"):  # until it has read its file, it says that it has none
        raise BusyLoadingError("The store is still reading its file.")
    replication: Any = await client.info("replication", **where)
    memory: Any = await client.info("memory", **where)
    save, fsync = await _config(client, "save", where), await _config(client, "appendfsync", where)
    return ServerConfig(
        policy=memory.get("maxmemory_policy") or await _config(client, "maxmemory-policy", where),
        max_memory=memory.get("maxmemory"),
        append_only=bool(persistence["aof_enabled"]) if "aof_enabled" in persistence else None,
        fsync=fsync,
        snapshots=None if save is None else bool(save),
        replicas=replication.get("connected_slaves"),
    )


async def _config(client: Redis, name: str, where: dict[str, Any]) -> str | None:
    try:
        found: Any = await client.config_get(name, **where)
    except ResponseError:  # forbidden, or renamed
        return None
    value: str | None = found.get(name)
    return value
