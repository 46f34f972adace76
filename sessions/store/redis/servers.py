"""Clients for the kinds of servers that a store may be: one server, a Redis Cluster, or a master that Sentinels name.

All of them serve the same commands, with a limit of concurrent ones. Later ones wait, fairly between groups (`caller_group.py`). After
a failover, a connection to a replica is dropped and made anew.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from redis._parsers.commands import AsyncCommandsParser
from redis.asyncio import ConnectionPool, Redis, RedisCluster, SSLConnection
from redis.asyncio.cluster import ClusterNode, ClusterPipeline
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as TimedOut

from sessions.store.redis.caller_group import caller_group
from sessions.store.redis.client import store_errors
from sessions.store.redis.fair_slots import CappedFairSlots, FairSlots
from sessions.store.redis.instrumented import (
    CALL_S,
    InstrumentedClusterPipeline,
    InstrumentedPool,
    InstrumentedRedis,
    StoreStats,
)
from sessions.store.redis.sentinels import Address, Sentinels
from sessions.store.redis.server_connections import (
    PrimaryConnection,
    PrimaryTlsConnection,
    ServerConnection,
    ServerTlsConnection,
    ServerUnixConnection,
)

SOCKET_TIMEOUT_S = CALL_S
SENTINEL_TIMEOUT_S = 1.0
AT_ONCE = 32
HEAVY_SLOTS = 6
"""Commands of a crowd that one server has at once: the work of each answer delays the answers behind it."""
CLUSTER = "redis+cluster"
SENTINEL = "redis+sentinel"
_TLS = {"rediss+cluster": CLUSTER, "rediss+sentinel": SENTINEL}
_PORTS = {CLUSTER: 6379, SENTINEL: 26379}
_LISTED = re.compile(r"\s*(rediss?\+(?:cluster|sentinel)://)([^/?#]*)(.*)", re.DOTALL | re.IGNORECASE)
_DRIVER = DriverInfo()
"""What connections tell of the client. Each would else look up its version among the installed packages, for a millisecond."""


def connect(url: str, stats: StoreStats | None = None, *, heavy_slots: int = HEAVY_SLOTS) -> Redis:
    """Return a client for a URL; it connects on first use. Raises ValueError.

    `redis://`, `rediss://` (TLS) and `unix://` name one server, `redis+cluster://host:port,host:port` some nodes of a
    cluster, `redis+sentinel://host:port,host:port/master` the Sentinels and the name of what they watch; with
    `rediss+` these speak TLS. `user:password@` is for the servers, `?sentinel_password=` for Sentinels. `stats` counts what
    commands take and what fails. `heavy_slots`: the commands that a crowd may have at once; in a cluster it is not looked at, since one
    node may keep all of them waiting.
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

    Newer releases of Python refuse a list of hosts of which one is an IPv6 address, so such a list is put in afterwards.
    """
    if (found := _LISTED.match(url)) is None:
        return urlsplit(url)
    return urlsplit(found[1] + "hosts" + found[3])._replace(netloc=found[2])


async def replica_name(client: Redis) -> str:
    """Return a unique name for a replica, in braces if it uses sharded channels (`tell.lua`).

    Those need a cluster of Redis 7 or Valkey. Raises StoreDown.
    """
    name = secrets.token_hex(8)
    if not isinstance(cast("object", client), RedisCluster):
        return name
    with store_errors():
        try:
            await client.spublish("ms:to", b"")
        except ResponseError:
            return name
    return f"{{{name}}}"


class _FairPool(ConnectionPool):
    """Connections that groups take in turn, so that a group that asks seldom does not wait behind one that asks often.

    A crowd has a few of them. `timeout`: seconds that a caller waits for one.
    """

    def __init__(self, *, timeout: float, heavy_slots: int = HEAVY_SLOTS, **options: Any) -> None:
        super().__init__(**options)
        self.timeout = timeout
        self._slots = CappedFairSlots(self.max_connections, heavy_slots=heavy_slots)
        self._in_use: dict[Any, Callable[[], None]] = {}

    async def get_connection(self, *args: Any, **options: Any) -> Any:
        release_slot = self._slots.take_nowait(caller_group()) or await self._wait()
        try:
            connection = await super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
        except BaseException:
            release_slot()
            raise
        self._in_use[connection] = release_slot
        return connection

    async def _wait(self) -> Callable[[], None]:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._slots.take(caller_group())
        except TimeoutError as error:
            raise ConnectionLost("No connection available.") from error

    async def release(self, connection: Any) -> None:
        try:
            await super().release(connection)
        finally:
            if (release_slot := self._in_use.pop(connection, None)) is not None:
                release_slot()


class _Pool(InstrumentedPool, _FairPool):
    """The same, with the waiting time counted."""


class _SentinelPool(_Pool):
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


class _Commands(AsyncCommandsParser):
    """The commands that the servers know, told by any master that answers: the client asks one alone, even if that one is down."""

    def __init__(self, masters: Callable[[], list[Any]]) -> None:
        super().__init__()
        self._masters = masters

    async def initialize(self, node: Any = None) -> None:
        candidates = [node, *(master for master in self._masters() if master is not node)]
        for one in candidates:
            try:
                await super().initialize(one)
            except (ConnectionLost, TimedOut):
                if one is candidates[-1]:
                    raise
            else:
                break


class _Cluster(RedisCluster):
    """A cluster client that connects on first use, as the others do."""

    def __init__(self, stats: StoreStats, **options: Any) -> None:
        super().__init__(max_connections=2 * AT_ONCE, **options)
        self.commands_parser = _Commands(self.get_primaries)
        self.stats = stats
        self._slots = FairSlots(AT_ONCE)  # a node's pool refuses instead of waiting

    async def execute_command(self, *args: Any, **kwargs: Any) -> Any:
        async with self.stats.call():
            with self.stats.wait():
                await self._slots.take(group := caller_group())
            try:
                return await super().execute_command(*args, **kwargs)
            finally:
                self._slots.release_slot(group)

    def pipeline(self, transaction: Any = None, shard_hint: Any = None) -> ClusterPipeline:  # noqa: ARG002 - a cluster has no hints
        pipeline = InstrumentedClusterPipeline(self, transaction)  # type: ignore[abstract]
        pipeline.stats = self.stats
        return pipeline

    async def aclose(self) -> None:
        """Close it when nobody uses it. The client also does this when a node is down, to look for the others anew.

        Then the connections to these stay: commands are under way on them. At the end all are closed, even if it was to look anew.
        """
        self._initialize = self._usage_counter > 0
        if not self._initialize:
            await super().aclose()

    async def __aenter__(self) -> Self:
        await self._increment_usage()
        return self


def _server(url: str, stats: StoreStats, *, heavy_slots: int) -> Redis:
    options: dict[str, Any] = dict(parse_url(url))
    if "path" in options:
        options["connection_class"] = ServerUnixConnection
    else:
        tls = options.get("connection_class") is SSLConnection
        options["connection_class"] = ServerTlsConnection if tls else ServerConnection
    return _watched(_Pool(heavy_slots=heavy_slots, **(_bounded() | _timing() | options)), stats)


def _watched(pool: InstrumentedPool, stats: StoreStats) -> Redis:
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
    """Return a client of a Sentinel. Its connections lose no cancellation, which would keep the looks from ending."""
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
        protocol=2,  # in which the answer to a PING among events has the form that the library expects
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
    """Return options by which callers wait for a connection as long as for an answer: many calls at once are no outage."""
    return {"timeout": SOCKET_TIMEOUT_S, "max_connections": AT_ONCE}


def _timing() -> dict[str, Any]:
    return {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": 2.0,
        "health_check_interval": 15,
        "retry": Retry(ExponentialBackoff(base=0.05, cap=0.5), retries=2),
        "driver_info": _DRIVER,
    }
