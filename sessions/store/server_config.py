"""What a service needs of its store at the start: permissions, settings, room to write, and patience while it loads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from time import monotonic
from typing import Any, TypeVar, cast

import msgspec
import structlog
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.exceptions import BusyLoadingError, OutOfMemoryError, ResponseError, SlotNotCoveredError

from sessions.errors import StoreDown
from sessions.store.client import WAIT_MS, Durability, DurabilityUnsupported, WriteConfirmer
from sessions.store_errors import store_errors

SCANNED = 500
"""Keys that the store scans in one call."""


async def scan_keys(client: Redis, pattern: str, *, kind: str | None = None) -> AsyncIterator[str]:
    """Yield the keys that match a pattern of Redis, some more than once. `kind`: a type of Redis. Raises StoreDown."""
    names = client.scan_iter(match=pattern, count=SCANNED, _type=kind)
    while True:
        with store_errors():
            name = await anext(names, None)
        if name is None:
            return
        yield name.decode()


PROBE_MS = 10_000
"""How long a probe's key lives."""
READ_S = 1.0
WRITE_S = 1.0 + WAIT_MS / 1000
MOST_SERVERS = 64
"""Masters of a cluster that are probed; further ones are not."""
_NAMES = tuple(f"ms:probe:{number}" for number in range(16 * MOST_SERVERS))
"""Keys spread over the slots, so that each master with its share of slots has one."""


class WritesRefused(StoreDown):
    """The store can be read, but a message could not be written."""


class OutOfMemory(WritesRefused):
    """The store can be read, and has no memory for a write."""


class WriteProbe:
    """Probes the store with a small write on each server, confirmed like an `accepted`."""

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
        """Return a key of each server, by server; None stands for slots without a server."""
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


PATIENCE_S = 60.0
PAUSE_S = 1.0
LOG_S = 10.0
"""How often the same reason for waiting is logged."""

_log = structlog.get_logger("midstream.store")
_T = TypeVar("_T")


async def retry_until_available(
    attempt: Callable[[], Awaitable[_T]],
    *,
    at: str | None = None,
    within_s: float | None = None,
    failed: Callable[[StoreDown], None] | None = None,
) -> _T:
    """Retry until the store answers; return the result. `at`: its address, for the log; `failed`: called before each retry.

    Raises StoreDown after `within_s`, `PATIENCE_S` by default, and any other error of an attempt.
    """
    since = monotonic()
    patience_s = PATIENCE_S if within_s is None else within_s
    logged: tuple[str, float] | None = None
    while True:
        try:
            return await attempt()
        except StoreDown as trouble:
            now, why = monotonic(), str(trouble)
            if now - since > patience_s:
                raise
            if failed is not None:
                failed(trouble)
            if logged is None or logged[0] != why or now - logged[1] >= LOG_S:
                logged = why, now
                _log.warning("waiting for the store", at=at, why=why, waited_s=round(now - since))
            await asyncio.sleep(PAUSE_S)


_WITHOUT_FILE = {
    False: "The store writes nothing to disk (appendonly no, no save): a restart of it loses every conversation.",
    True: "The store writes snapshots alone (appendonly no): a restart of it loses everything since the last one.",
    None: "The store has no append-only file: a restart of it can lose everything, or everything since a snapshot.",
}
"""What a store without an append-only file loses, by whether it writes snapshots."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server's setup. None: the server does not say, like managed ones that forbid CONFIG."""

    policy: str | None
    max_memory: int | None
    append_only: bool | None
    fsync: str | None
    snapshots: bool | None
    replicas: int | None

    @property
    def evicts(self) -> bool:
        """Whether the server evicts keys when its memory is full."""
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
    """Return the servers' setups. Raises DurabilityUnsupported if what they say rules out the durability; StoreDown."""
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
    """Return warnings about the setups, as sentences, each once."""
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
            "taken to be three quarters of the machine, or MIDSTREAM_STORE_MEMORY."
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
    if persistence.get("loading"):  # until the server has read its append-only file, it reports none
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
