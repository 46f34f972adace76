"""The store of the settings: whether it can do what they ask, and what its operator should know."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from math import inf
from pathlib import Path

import structlog
from redis.asyncio import Redis

from app.settings import Settings, SettingsError
from sessions.errors import StoreDown
from sessions.store.client import Durability, DurabilityUnsupported, connect, split
from sessions.store.embedded import EMBEDDED_BYTES, embedded_store
from sessions.store.owner_data import begin_epochs
from sessions.store.ownership import older_replicas
from sessions.store.pool import HEAVY_SLOTS, StoreStats
from sessions.store.server_config import checked_server_configs, config_warnings, retry_until_available

_EARLIER = {"everysec": "memory", "always": "disk"}
"""What 0.1.0 called them."""
_NAME = "MIDSTREAM_STORE_DURABILITY (--store-durability)"

_log = structlog.get_logger("midstream.store")


def durability_of(settings: Settings) -> Durability:
    """Return how durable an `accepted` or a `done` is. Raises SettingsError."""
    if settings.store_durability is None:
        return Durability.DISK if settings.redis_url is None else Durability.MEMORY
    durability = Durability(_EARLIER.get(settings.store_durability, settings.store_durability))
    if durability is Durability.REPLICATED and settings.redis_url is None:
        raise SettingsError(f"{_NAME}: the embedded store has no replicas. Name a store by --redis-url.")
    return durability


def store_url(settings: Settings) -> AbstractAsyncContextManager[str]:
    """Return the store's URL; an embedded store runs while the context lasts. Raises EmbeddedStoreFailed, SettingsError."""
    if settings.redis_url is not None:
        return nullcontext(settings.redis_url)
    in_memory = durability_of(settings) is Durability.MEMORY
    return embedded_store(
        Path(settings.data_dir).expanduser(),
        max_bytes=settings.store_bytes or EMBEDDED_BYTES,
        fsync="everysec" if in_memory else "always",
    )


def store_client(url: str, tally: StoreStats | None = None, *, heavy_slots: int = HEAVY_SLOTS) -> Redis:
    """Return a client of the store. `heavy_slots`: the commands that a crowd may have at once. Raises SettingsError."""
    try:
        return connect(url, tally, heavy_slots=heavy_slots)
    except ValueError as error:
        raise SettingsError(f"MIDSTREAM_REDIS_URL (--redis-url): {error}.") from None


async def look_at_store(
    settings: Settings, store: Redis, *, failed: Callable[[StoreDown], None] | None = None
) -> None:
    """Wait for the store without a limit, and log what an operator should know. `failed` is called with each failed attempt.

    Raises SettingsError if the store can't do what is asked.
    """
    await retry_until_available(
        partial(_look, settings, store), at=_address(settings), within_s=inf, failed=failed
    )


def _address(settings: Settings) -> str:
    """Return the store's URL without its credentials and options."""
    url = split(settings.redis_url or settings.data_dir)
    return url._replace(netloc=url.netloc.rpartition("@")[2], query="").geturl()


async def _look(settings: Settings, store: Redis) -> None:
    durability = durability_of(settings)
    try:
        found = await checked_server_configs(store, durability)
    except DurabilityUnsupported as error:
        raise SettingsError(f"{_NAME}: this store can't do that: {error}") from error
    if settings.redis_url is not None and (older := await older_replicas(store)):
        raise SettingsError(
            f"{len(older)} replicas of an older version still serve from this store, and can't read what this one "
            "writes. Stop them first, and start again 10 s later."
        )
    for sentence in config_warnings(found, durability):
        _log.warning(sentence)
    for setup in found[:1]:
        _log.info("store", policy=setup.policy, append_only=setup.append_only, fsync=setup.fsync)


async def restored(settings: Settings) -> int:
    """Begin a new epoch in every conversation of the store; return their number.

    Raises SettingsError, EmbeddedStoreFailed, StoreDown.
    """
    async with store_url(settings) as url, store_client(url) as store:
        return await retry_until_available(partial(begin_epochs, store))
