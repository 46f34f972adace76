"""The store's client (one server, a cluster, or a master behind Sentinels): scripts, retries, durability, one error for outages.

All kinds of servers take the same commands, up to a limit of concurrent ones. Further commands wait, fairly between groups
(`limits/slots.py`). After a failover, a connection whose server became a replica is dropped and opened again. A retry that repeats a
write is harmless: every write is a Lua script that recognises a repetition.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Self, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis.exceptions as errors
from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.client import Pipeline
from redis.asyncio.cluster import ClusterNode, ClusterPipeline, PipelineCommand
from redis.asyncio.connection import AbstractConnection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import (
    MovedError,
    ReadOnlyError,
    ResponseError,
)
from redis.exceptions import TimeoutError as TimedOut

from sessions.errors import StoreDown
from sessions.limits.slots import FairSlots
from sessions.store.pool import (
    AT_ONCE,
    CALL_S,
    HEAVY_SLOTS,
    Address,
    FairPool,
    InstrumentedClusterPipeline,
    InstrumentedRedis,
    Sentinels,
    StoreStats,
)
from sessions.store_errors import store_errors

LUA = Path(__file__).parent / "lua"
SOCKET_TIMEOUT_S = CALL_S
SENTINEL_TIMEOUT_S = 1.0
WAIT_MS = 1000
"""How long an `accepted` or a `done` waits for replicas; then the message is refused, or the reply is reported as not saved."""
CLUSTER = "redis+cluster"
SENTINEL = "redis+sentinel"
_TLS = {"rediss+cluster": CLUSTER, "rediss+sentinel": SENTINEL}
_PORTS = {CLUSTER: 6379, SENTINEL: 26379}
_LISTED = re.compile(r"\s*(rediss?\+(?:cluster|sentinel)://)([^/?#]*)(.*)", re.DOTALL | re.IGNORECASE)
_DRIVER = DriverInfo()
"""The client's name and version for servers. Looking the version up among installed packages would take each connection 1 ms."""


def connect(url: str, stats: StoreStats | None = None, *, heavy_slots: int = HEAVY_SLOTS) -> Redis:
    """Return a client for a URL; it connects on first use. Raises ValueError.

    `redis://`, `rediss://` (TLS) and `unix://` name one server, `redis+cluster://host:port,host:port` some nodes of a cluster,
    `redis+sentinel://host:port,host:port/master` the Sentinels and the name of the group that they watch; with `rediss+` these
    speak TLS. `user:password@` is for the servers, `?sentinel_password=` for Sentinels. `stats` counts what commands take and
    what fails. `heavy_slots`: concurrent commands of heavy clients; ignored in a cluster, since one node may keep all of them
    waiting.
    """
    if not _is_escaped(url):
        raise ValueError(
            "the user or the password has a character with a meaning of its own in URLs. "
            "Write / as %2F, ? as %3F, # as %23, @ as %40, [ as %5B and ] as %5D"
        )
    stats = stats or StoreStats()
    scheme = split(url).scheme
    match _TLS.get(scheme, scheme):
        case "redis+cluster":
            return _cluster(url, stats, tls=scheme in _TLS)
        case "redis+sentinel":
            return _sentinel(url, stats, tls=scheme in _TLS, heavy_slots=heavy_slots)
        case _:
            return _server(url, stats, heavy_slots=heavy_slots)


def _is_escaped(url: str) -> bool:
    """Whether no part of a password is taken for another part of the URL: errors would quote it."""
    try:
        parts = split(url)
    except ValueError:
        return False
    if {"[", "]"} & {*parts.netloc.rpartition("@")[0]}:
        return False
    query = "" if "sentinel_password=" in parts.query else parts.query
    return parts.scheme == "unix" or "@" not in parts.path + query + parts.fragment


def split(url: str) -> SplitResult:
    """Return the parts of a URL. Raises ValueError.

    Newer releases of Python refuse a list of hosts that includes an IPv6 address, so such a list replaces a placeholder after
    parsing.
    """
    if (found := _LISTED.match(url)) is None:
        return urlsplit(url)
    return urlsplit(found[1] + "hosts" + found[3])._replace(netloc=found[2])


def _server(url: str, stats: StoreStats, *, heavy_slots: int) -> Redis:
    options: dict[str, Any] = dict(parse_url(url))
    if "path" in options:
        options["connection_class"] = ServerUnixConnection
    else:
        tls = options.get("connection_class") is SSLConnection
        options["connection_class"] = ServerTlsConnection if tls else ServerConnection
    return _watched(FairPool(heavy_slots=heavy_slots, **(_bounded() | _timing() | options)), stats)


def _watched(pool: FairPool, stats: StoreStats) -> Redis:
    client = InstrumentedRedis.from_pool(pool)
    pool.stats = stats
    cast("InstrumentedRedis", client).stats = stats
    return client


def _cluster(url: str, stats: StoreStats, *, tls: bool) -> Redis:
    nodes = [ClusterNode(host, port) for host, port in _hosts(url, CLUSTER)]
    if split(url).path.strip("/"):
        raise ValueError("a cluster has no path and no database in its URL")
    return cast("Redis", _Cluster(stats, startup_nodes=nodes, ssl=tls, **_login(url), **_timing()))


def _sentinel(url: str, stats: StoreStats, *, tls: bool, heavy_slots: int) -> Redis:
    master, _, database = split(url).path.strip("/").partition("/")
    if not master or not (database or "0").isdigit():
        raise ValueError("a Sentinel URL ends with the master's name: redis+sentinel://host:26379/mymaster")
    query = dict(parse_qsl(split(url).query))
    options = _timing() | _bounded() | _login(url) | {"db": int(database or 0), "heavy_slots": heavy_slots}
    pool = _SentinelPool(
        unquote(master),
        _hosts(url, SENTINEL),
        client_of=partial(_sentinel_client, password=query.get("sentinel_password"), tls=tls),
        connection_class=PrimaryTlsConnection if tls else PrimaryConnection,
        **options,
    )
    return _watched(pool, stats)


def _sentinel_client(address: Address, *, password: str | None, tls: bool) -> Redis:
    """Return a client of a Sentinel. Its connections lose no cancellation: `_Sentinel.run` has to end by one."""
    host, port = address
    pool = ConnectionPool(
        connection_class=ServerTlsConnection if tls else ServerConnection,
        host=host,
        port=port,
        password=password,
        socket_timeout=SENTINEL_TIMEOUT_S,
        socket_connect_timeout=SENTINEL_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        driver_info=_DRIVER,
        protocol=2,  # the answer to a PING during a subscription has the form that the library expects
        decode_responses=True,
    )
    return Redis.from_pool(pool)


def _hosts(url: str, kind: str) -> list[tuple[str, int]]:
    """Return the hosts between `@` and the path; ports have defaults."""
    found = []
    for address in split(url).netloc.rpartition("@")[2].split(","):
        one = urlsplit(f"//{address}")
        if not one.hostname:
            raise ValueError(f"no host in {address!r}")
        found.append((one.hostname, one.port or _PORTS[kind]))
    return found


def _login(url: str) -> dict[str, str | None]:
    name, _, password = split(url).netloc.rpartition("@")[0].partition(":")
    return {"username": unquote(name) or None, "password": unquote(password) or None}


def _bounded() -> dict[str, Any]:
    """Return options that let callers wait as long for a connection as for an answer: many calls at once are no outage."""
    return {"timeout": SOCKET_TIMEOUT_S, "max_connections": AT_ONCE}


def _timing() -> dict[str, Any]:
    return {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 2.0,
        "health_check_interval": 15,
        "retry": Retry(ExponentialBackoff(base=0.05, cap=0.5), retries=2),
        "driver_info": _DRIVER,
    }


async def run_script(
    client: Redis, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> Any:
    """Run a script by its hash; load it first if the server does not know it.

    Raises StoreDown.
    """
    with store_errors():
        try:
            return await client.evalsha(script.sha, len(keys), *keys, *args)
        except errors.NoScriptError:
            return await client.eval(script.source, len(keys), *keys, *args)


async def pipelined(client: Redis, queue: Callable[[Pipeline], None]) -> list[Any]:
    """Send what `queue` adds, for any slots of a cluster, in one round trip. Each command must be harmless when repeated.

    Raises StoreDown.
    """

    async def execute() -> list[Any]:
        pipe = client.pipeline(transaction=False)
        queue(pipe)
        return await pipe.execute()

    with store_errors():
        try:
            return await execute()
        except errors.NoScriptError:
            await load_scripts(client)
            return await execute()


async def hash_fields(client: Redis, key: str, *fields: str) -> list[bytes | None]:
    """Return the values of a hash's `fields`, None for each missing one. Raises StoreDown."""
    with store_errors():
        return await cast("Awaitable[list[bytes | None]]", client.hmget(key, list(fields)))


def queue_script(
    pipe: Pipeline, script: Script, keys: Sequence[str], args: Sequence[str | bytes | int]
) -> None:
    """Add a script to a pipeline, by its hash. A cluster's pipeline has no `evalsha`, but executes the command."""
    pipe.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)


async def load_scripts(client: Redis) -> None:
    """Load every script into the server, or all masters of a cluster, so that pipelines can use hashes. Raises StoreDown."""
    with store_errors():
        for script in Script.all:
            await client.script_load(script.source)


class Script:
    """A Lua script, named by its SHA-1. `parts`: files that are joined in this order."""

    all: ClassVar[list[Script]] = []

    def __init__(self, *parts: str) -> None:
        self.all.append(self)
        self.source = "\n".join((LUA / f"{part}.lua").read_text() for part in parts)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


ACCEPT = Script("tree", "tell", "ends", "accept")
APPEND = Script("tree", "tell", "ends", "append")
FINISH = Script("tree", "tell", "ends", "ledger", "finish")
REMOVE = Script("tree", "tell", "ends", "ledger", "remove")
BRANCH = Script("tree", "branch")
ACTIVATE = Script("tree", "tell", "activate")
NOTE = Script("ledger", "note")
DESCRIBE = Script("ledger", "describe")
RENAME = Script("rename")
SHARE = Script("share")
WATCH = Script("watch")
POST = Script("post")
COLLECT = Script("collect")
TOUCH = Script("ledger", "touch")
SINCE = Script("tree", "since")
DELETE = Script("tell", "ledger", "delete")
RENEW = Script("renew")
START = Script("start")
GO_ON = Script("go_on")
KEEP_IMAGE = Script("ledger", "keep_image")
ADMIT = Script("ledger", "admit")
CHARGE = Script("ledger", "charge")
PUT = Script("put")


class _InlineConnection(AbstractConnection):
    """A connection that sends in its caller's task.

    Before Python 3.12 the library starts a task for each command, which costs two turns of the event loop.
    """

    async def send_packed_command(
        self,
        command: bytes | str | Iterable[bytes],
        check_health: bool = True,  # noqa: FBT001, FBT002 - the library's
    ) -> None:
        """Send a command. Raises the library's errors. An error or a cancellation closes the connection."""
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call]
        whole = command.encode() if isinstance(command, str) else command
        try:
            async with asyncio.timeout(self.socket_timeout):
                # private: the public method, which this one overrides, calls it through `asyncio.wait_for`
                await self._send_packed_command([whole] if isinstance(whole, bytes) else whole)
        except BaseException as error:
            await self.disconnect(nowait=True)
            if isinstance(error, TimeoutError):
                raise TimedOut("The server does not take a command.") from error
            if isinstance(error, OSError):
                raise ConnectionLost(f"The connection was lost while a command was sent: {error}.") from error
            raise


class _PrimaryOnlyConnection(_InlineConnection):
    """A connection that is dropped if its server turns out to be a replica; reconnecting leads to the master."""

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read an answer. Raises ConnectionError, of the library, in place of ReadOnlyError."""
        try:
            return await super().read_response(*args, **kwargs)
        except ReadOnlyError as error:
            await self.disconnect()
            raise ConnectionLost("The server has become a replica.") from error


class ServerConnection(_PrimaryOnlyConnection, Connection):
    """A connection to one server."""


class ServerTlsConnection(_PrimaryOnlyConnection, SSLConnection):
    """The same, with TLS."""


class ServerUnixConnection(_InlineConnection, UnixDomainSocketConnection):
    """A connection by a unix socket."""


class _TermConnection(_PrimaryOnlyConnection):
    """A connection to a group's primary. It ends with its term: later answers may come from an old primary."""

    def __init__(self, *, sentinels: Sentinels, **options: Any) -> None:
        super().__init__(**options)
        self._sentinels = sentinels
        self._term = sentinels.term

    async def connect_check_health(self, *args: Any, **kwargs: Any) -> None:
        """Connect to the primary, after a failover if one is under way. Raises the library's errors."""
        if not self.is_connected:
            (self.host, self.port), self._term = await self._sentinels.primary()
        await super().connect_check_health(*args, **kwargs)

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        """Send a command. Raises the library's errors."""
        if self.is_connected:
            await self._end_with_its_term()
        await super().send_packed_command(*args, **kwargs)

    async def read_response(self, *args: Any, **kwargs: Any) -> Any:
        """Read an answer. Raises the library's errors."""
        answer = await super().read_response(*args, **kwargs)
        await self._end_with_its_term()
        return answer

    async def _end_with_its_term(self) -> None:
        if self._term != self._sentinels.term:
            await self.disconnect(nowait=True)
            raise ConnectionLost("A failover began.")


class PrimaryConnection(_TermConnection, Connection):
    """A connection to the primary that Sentinels name."""


class PrimaryTlsConnection(_TermConnection, SSLConnection):
    """The same, with TLS."""


class _SentinelPool(FairPool):
    """Connections to the primary that Sentinels name. They end when a failover begins."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[Address],
        *,
        client_of: Callable[[Address], Redis],
        **options: Any,
    ) -> None:
        self.sentinels = Sentinels(name, addresses, client_of=client_of, drop=self.disconnect)
        super().__init__(sentinels=self.sentinels, **options)

    async def aclose(self) -> None:
        if self.sentinels is not None:
            await self.sentinels.aclose()
        await super().aclose()


class _Commands:
    """The commands that the servers know, read from any master that answers: the library asks only one, even if it is down."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._parser = cluster.commands_parser
        self._cluster = cluster

    async def initialize(self, node: ClusterNode) -> None:
        candidates = [node, *(master for master in self._cluster.get_primaries() if master is not node)]
        for one in candidates:
            try:
                await self._parser.initialize(one)
            except (ConnectionLost, TimedOut):
                if one is candidates[-1]:
                    raise
            else:
                break

    async def get_keys(self, *args: Any) -> Any:
        return await self._parser.get_keys(*args)


class _Cluster(RedisCluster):
    """A cluster client that connects on first use, as the others do."""

    def __init__(self, stats: StoreStats, **options: Any) -> None:
        super().__init__(max_connections=2 * AT_ONCE, **options)
        self.commands_parser = _Commands(self)  # type: ignore[assignment]
        self.stats = stats
        self._users = 0
        self._slots = FairSlots(AT_ONCE)  # a node's pool refuses instead of waiting

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        async with self.stats.call():
            began = monotonic()
            try:
                slot = await self._slots.take()
            finally:
                self.stats.waits.observe(monotonic() - began)
            try:
                return await super().execute_command(*args, **kwargs)
            finally:
                self._slots.release(slot)

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> ClusterPipeline:  # noqa: ARG002 - a cluster has no hints
        pipeline = InstrumentedClusterPipeline(self, transaction)  # type: ignore[abstract]
        pipeline.stats = self.stats
        return pipeline

    async def aclose(self) -> None:
        """Close the client when nobody uses it. The library also calls this when a node is down, to look up the nodes anew.

        Connections then stay open: commands are under way on them. At the end all are closed, even if a lookup was due.
        """
        self._initialize = self._users > 0  # private: the next command looks up the nodes
        if not self._initialize:
            await super().aclose()

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            await asyncio.shield(self.aclose())


class Durability(StrEnum):
    """What an `accepted` or a `done` waits for."""

    MEMORY = "memory"
    """The store's answer, which it may give before its disk has the write."""
    DISK = "disk"
    """The store's answer, which it gives once its disk has the write (`appendfsync always`; see `checked_server_configs`).

    WAITAOF is not used. With `appendfsync everysec` it waits up to a second; Valkey 8.0 to 9.1 and Redis 7.4.0 to 7.4.2 answer it
    before the fsync (redis/redis#13793).
    """
    REPLICATED = "replicated"
    """The store's answer, and the write in the memory of one of its replicas (WAIT)."""


class DurabilityUnsupported(Exception):
    """The store does not support this durability. The message is for the operator."""


class WriteConfirmer:
    """Waits until earlier writes are durable enough.

    WAIT covers only earlier writes of the same connection, so a PEXPIRE precedes it.
    """

    def __init__(self, client: Redis, durability: Durability) -> None:
        self._client = client
        self._needs_replica = durability is Durability.REPLICATED
        pool = getattr(client, "connection_pool", None)  # a cluster has none
        self._sentinels = pool.sentinels if isinstance(pool, FairPool) else None

    @property
    def term(self) -> int:
        """A number that changes with each failover by Sentinels; 0 without Sentinels."""
        return self._sentinels.term if self._sentinels is not None else 0

    async def confirm(self, key: str, *, ttl_ms: int, term: int) -> None:
        """Wait until all earlier writes to the key's server are durable. Raises StoreDown if it takes too long.

        `term`: as it was before the writes. A failover since then raises StoreDown, too, since it may have lost them.
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
        """Send commands over one connection to the server of the first command's key; return the last answer."""
        cluster = cast("object", self._client)
        if isinstance(cluster, RedisCluster):
            async with asyncio.timeout(CALL_S):
                return await _ask_in_cluster(cluster, commands)
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command)
        return (await pipe.execute())[-1]


async def _ask_in_cluster(cluster: RedisCluster, commands: tuple[tuple[str | int, ...], ...]) -> Any:
    """Send commands to the node of the first one's key; return the last answer. The library's pipelines require keys.

    Raises MovedError if the key has moved: its new server's replicas say nothing about a write to the old server.
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
