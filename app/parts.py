"""Builds what the settings name: authentication, limits, reloading, the store, tools, traces."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from urllib.parse import urlsplit

import structlog
from redis.asyncio import Redis

from app.settings import (
    Limits,
    Settings,
    SettingsError,
    called,
    hinted,
    limits_in,
    naming,
    secret_of,
    variable,
)
from connections.authentication.access import AccessControl, Tickets
from connections.authentication.api_keys import ApiKeyStore, file_state
from connections.authentication.json_web_tokens import Claims, JsonWebTokens, JwkSet, fetch_jwk_set
from connections.http import RefusalCounters
from connections.limiters import BoundCounters, Limiters
from connections.middleware import ANY, AllowedOrigins
from connections.protocol.errors import InvalidList
from engine.errors import install_command
from sessions.errors import StoreDown
from sessions.limits.quotas import QuotaLimiter, QuotaSettings, RedisCounters
from sessions.limits.rates import LocalRateLimits
from sessions.limits.shares import HandshakeLimit
from sessions.observer import Observer
from sessions.store.client import Durability, DurabilityUnsupported, connect, split
from sessions.store.embedded import EMBEDDED_BYTES, embedded_store
from sessions.store.owner_data import begin_epochs
from sessions.store.ownership import older_replicas
from sessions.store.pool import HEAVY_SLOTS, StoreStats
from sessions.store.server_config import checked_server_configs, config_warnings, retry_until_available
from sessions.tools.function_tools import FunctionTools, InvalidToolFunction, discover_functions
from sessions.tools.mcp_options import InvalidServers, ServerOptions, servers_from
from sessions.tools.tool_registry import ToolRegistry, ToolSource

FLUSH_S = 1.0
CHECK_S = 2.0
"""Seconds between two checks of files; the key file is also checked at each connection."""
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
TOOL_S = 30.0
"""How long a call of a Python function may run."""
RESULT_BYTES = 64 * 1024
"""The most bytes of a tool's result; a longer one is cut."""
_limits_log = structlog.get_logger("midstream.limits")
_reload_log = structlog.get_logger("midstream.rereading")
_store_log = structlog.get_logger("midstream.store")
_tools_log = structlog.get_logger("midstream.tools")
_tracing_log = structlog.get_logger("midstream.tracing")


def access_of(settings: Settings, store: Redis, *, refresh_s: float) -> AccessControl:
    """Return the authentication that the settings define. Raises SettingsError if keys or origins can't be read."""
    with naming("api_keys", InvalidList):
        keys = None if settings.api_keys is None else ApiKeyStore(settings.api_keys)
    with naming("allowed_origins", InvalidList):
        origins = AllowedOrigins(settings.allowed_origins)
    return AccessControl(
        keys=keys,
        web_tokens=web_tokens_of(settings),
        tickets=Tickets(store),
        origins=origins,
        refresh_s=refresh_s,
    )


def web_tokens_of(settings: Settings) -> JsonWebTokens | None:
    """Return what verifies JWTs; None if the settings name no secret, key set or issuer.

    Raises SettingsError if the library for key sets is missing.
    """
    key_set = None
    if settings.oidc_issuer is not None:
        key_set = JwkSet(settings.oidc_issuer, fetch=fetch_jwk_set)
    elif settings.jwks_url is not None:
        key_set = JwkSet(settings.jwks_url)
    if key_set is not None and find_spec("cryptography") is None:
        named = called("jwt_issuer" if settings.jwks_url is None else "jwks_url")
        raise SettingsError(f"{named}: cryptography is not installed: {install_command('crypto')}")
    if settings.jwt_secret is None and key_set is None:
        return None
    audience = None if settings.jwt_audience == ANY else settings.jwt_audience
    return JsonWebTokens(
        secret=settings.jwt_secret,
        key_set=key_set,
        claims=Claims(audience=audience, issuer=settings.jwt_issuer),
    )


@asynccontextmanager
async def limiters_of(
    settings: Settings, store: Redis, access: AccessControl, refusals: RefusalCounters, bounds: BoundCounters
) -> AsyncIterator[Limiters]:
    """Yield the limiters, which run while the context lasts. An unset limit costs no round trip."""
    quotas, counts = quotas_of(settings.limits), RedisCounters(store)
    counts_any = (
        quotas != QuotaSettings() or settings.api_keys is not None or settings.limits_file is not None
    )
    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(counts.run())
        try:
            yield Limiters(
                quota_limiter=QuotaLimiter(quotas, counts, allowance_of=access.allowance_of)
                if counts_any
                else None,
                counts=counts,
                handshake_limit=HandshakeLimit(slots=settings.max_pending_connections),
                rates=LocalRateLimits(messages=settings.limits.message_rate, reads=settings.limits.read_rate),
                refusals=refusals,
                bounds=bounds,
            )
        finally:
            counting.cancel()
    with suppress(StoreDown, TimeoutError):
        async with asyncio.timeout(FLUSH_S):
            await counts.settle()


def quotas_of(limits: Limits) -> QuotaSettings:
    """Return the limits of messages and tokens."""
    return QuotaSettings(
        messages_per_minute=limits.messages_per_minute,
        key_messages_per_minute=limits.key_messages_per_minute,
        tokens_per_day=limits.tokens_per_day,
        key_tokens_per_day=limits.key_tokens_per_day,
    )


class ConfigReload:
    """Rereads the files of keys, origins and limits: from time to time if they changed, and at once on request.

    Of the settings' file, only limits are applied, except `key_connections`; other settings take effect at a restart. A file
    that becomes unusable changes nothing and is logged.
    """

    def __init__(self, settings: Settings, access: AccessControl, limiters: Limiters) -> None:
        self.access = access
        self._limiters = limiters
        self._path = None if settings.limits_file is None else Path(settings.limits_file).expanduser()
        # The first check rereads the file: it may have changed since the settings were read.
        self._state: tuple[int, int, int] | None = None
        self._limits = settings.limits

    def reload(self) -> None:
        """Reread everything, whether or not it changed."""
        self.access.reload()
        self._reload_limits(always=True)

    async def watch(self) -> None:
        """Check from time to time, until cancelled; without files there is nothing to check."""
        while self.access.may_change or self._path is not None:
            await asyncio.sleep(CHECK_S)
            for reload_if_changed in (self.access.reload_if_changed, self._reload_limits):
                try:
                    reload_if_changed()
                except Exception:  # noqa: BLE001 - a boundary: the service keeps what it read before
                    _reload_log.exception("config check failed, previous config kept")

    def _reload_limits(self, *, always: bool = False) -> None:
        """Reread the file of limits if it changed; otherwise this costs a `stat`."""
        if self._path is None or (file_state(self._path) == self._state and not always):
            return
        self._state = file_state(self._path)
        try:
            limits = limits_in(self._path)
        except SettingsError as error:
            _limits_log.error("limits not reloaded, previous limits kept", why=str(error))
            return
        if limits != self._limits:
            self._limits = limits
            if self._limiters.quota_limiter is not None:
                self._limiters.quota_limiter.quotas = quotas_of(limits)
            self._limiters.rates.change(messages=limits.message_rate, reads=limits.read_rate)
            _limits_log.info("limits reloaded")


def durability_of(settings: Settings) -> Durability:
    """Return how durable messages and replies are once they are acknowledged. Raises SettingsError."""
    if settings.store_durability is None:
        return Durability.DISK if settings.redis_url is None else Durability.MEMORY
    durability = Durability(settings.store_durability)
    if durability is Durability.REPLICATED and settings.redis_url is None:
        raise SettingsError(
            f"{called('store_durability')}: the embedded store has no replicas. Name a store by --redis-url."
        )
    return durability


def store_url(settings: Settings) -> AbstractAsyncContextManager[str]:
    """Return the store's URL; an embedded store runs while the context lasts. Raises EmbeddedStoreFailed, SettingsError."""
    if settings.redis_url is not None:
        return nullcontext(settings.redis_url)
    in_memory = durability_of(settings) is Durability.MEMORY
    return embedded_store(
        Path(settings.data_dir).expanduser(),
        max_bytes=settings.store_memory or EMBEDDED_BYTES,
        fsync="everysec" if in_memory else "always",
    )


def store_client(url: str, tally: StoreStats | None = None, *, heavy_slots: int = HEAVY_SLOTS) -> Redis:
    """Return a client of the store. `heavy_slots`: the most commands of heavy clients at once. Raises SettingsError."""
    with naming("redis_url", ValueError, end="."):
        return connect(url, tally, heavy_slots=heavy_slots)


async def look_at_store(
    settings: Settings, store: Redis, *, failed: Callable[[StoreDown], None] | None = None
) -> None:
    """Wait for the store without a limit, and log what an operator should know. `failed` is called after each failed attempt.

    Raises SettingsError if the store can't do what the settings require.
    """
    url = split(settings.redis_url or settings.data_dir)
    address = url._replace(
        netloc=url.netloc.rpartition("@")[2], query=""
    ).geturl()  # without credentials and options
    await retry_until_available(partial(_look, settings, store), at=address, within_s=inf, failed=failed)


async def _look(settings: Settings, store: Redis) -> None:
    durability = durability_of(settings)
    try:
        found = await checked_server_configs(store, durability)
    except DurabilityUnsupported as error:
        raise SettingsError(f"{called('store_durability')}: this store can't do that: {error}") from error
    if settings.redis_url is not None and (older := await older_replicas(store)):
        raise SettingsError(
            f"{len(older)} replicas of an older version still serve from this store, and can't read what this one "
            "writes. Stop them first, and start again 10 s later."
        )
    for sentence in config_warnings(found, durability):
        _store_log.warning(sentence)
    for setup in found[:1]:
        _store_log.info("store", policy=setup.policy, append_only=setup.append_only, fsync=setup.fsync)


async def restored(settings: Settings) -> int:
    """Begin a new epoch in every conversation of the store; return their number.

    Raises SettingsError, EmbeddedStoreFailed, StoreDown.
    """
    async with store_url(settings) as url, store_client(url) as store:
        return await retry_until_available(partial(begin_epochs, store))


def tool_box_of(settings: Settings) -> ToolRegistry:
    """Return all tools that the settings and the installed packages name. Raises SettingsError."""
    return ToolRegistry([_functions(settings), *_servers(settings)])


def _functions(settings: Settings) -> ToolSource:
    """Return the Python functions that are tools. Raises SettingsError."""
    torch_was_there = "torch" in sys.modules
    with naming("tools", InvalidToolFunction):
        tools = discover_functions(settings.tools)
    if tools:
        _tools_log.info("function tools loaded", offered=[one.tool.name for one in tools])
    if "torch" in sys.modules and not torch_was_there:
        _tools_log.warning(
            "a tool has imported torch into the gateway: garbage collections will stall replies"
        )
    return FunctionTools(tools, limit_s=TOOL_S, result_bytes=RESULT_BYTES)


def _servers(settings: Settings) -> Iterator[ToolSource]:
    """Yield the MCP servers. Raises SettingsError, also if the library for MCP is missing."""
    if "mcp_server" not in settings.tables:
        return
    where = f"{settings.config}: [[mcp_server]]"
    try:
        servers = servers_from(settings.tables["mcp_server"])
    except InvalidServers as error:
        raise SettingsError(f"{where}: {hinted(str(error), ServerOptions)}") from error
    try:
        from sessions.tools.mcp_server import McpServer  # noqa: PLC0415 - needed only if MCP servers are configured
    except ModuleNotFoundError as error:
        raise SettingsError(f"{where}: {error.name} is not installed: {install_command('mcp')}") from error
    for options in servers:
        setting = f"{where}: {options.name}"
        secrets = {header: secret_of(name, setting=setting) for header, name in options.headers_from.items()}
        try:
            yield McpServer(options, options.headers | secrets, result_bytes=RESULT_BYTES)
        except OSError as error:
            raise SettingsError(f"{setting}: its ca_file can't be used: {error}.") from error


@asynccontextmanager
async def traced(observer: Observer, *, version: str) -> AsyncIterator[Observer]:
    """Yield an observer that also records spans of turns if OpenTelemetry's variables name an endpoint; else yield the given one.

    Without an endpoint none of OpenTelemetry's libraries is imported. Raises SettingsError.
    """
    endpoint = _endpoint()
    if endpoint is None:
        yield observer
        return
    try:
        from app.tracing import Spans  # noqa: PLC0415 - an optional part
    except ModuleNotFoundError as missing:
        why = f"{missing.name} is not installed: {install_command('otel')}"
        raise SettingsError(f"{ENDPOINTS[1]} asks for traces, but {why}") from missing
    spans = Spans(observer, version=version)
    _tracing_log.info("tracing enabled", collector=urlsplit(endpoint).hostname)
    try:
        yield spans
    finally:
        if not await spans.close():
            _tracing_log.warning("the last spans were dropped: the collector does not accept them")


def _endpoint() -> str | None:
    """Return the endpoint of spans; None if none is set. Raises SettingsError."""
    name = next((name for name in ENDPOINTS if variable(name)), None)
    is_disabled = (variable("OTEL_SDK_DISABLED") or "").strip().lower() == "true"
    is_off = is_disabled or variable("OTEL_TRACES_EXPORTER") == "none"
    if name is None or is_off:
        return None
    endpoint = variable(name) or ""
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).hostname:
        raise SettingsError(f"{name} takes a URL, such as http://127.0.0.1:4318.")
    # the endpoint of traces has precedence over the general one
    spoken = next((name for name in PROTOCOLS if variable(name)), None)
    if spoken is not None and variable(spoken) != PROTOCOL:
        raise SettingsError(f"{spoken}: only {PROTOCOL} is supported, which is port 4318 of most collectors.")
    return endpoint
