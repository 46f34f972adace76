"""Looks at the store when the service starts: whether it can do what the settings ask, and what its operator should know."""

from __future__ import annotations

from functools import partial

import structlog
from redis.asyncio import Redis

from app.setting_values import SettingsError
from app.settings import Settings
from sessions.store.ownership import older_replicas
from sessions.store.redis.durability import Confirming, Durability, Unsupported
from sessions.store.redis.setup import advice, setups
from sessions.store.redis.waiting import patiently

_log = structlog.get_logger("midstream.store")


def asked_of(settings: Settings) -> Durability:
    """What has to be asked of the store; the embedded one does by itself what it can. Raises SettingsError."""
    asked = Durability(settings.store_durability)
    if settings.redis_url is not None:
        return asked
    if asked is Durability.REPLICATED:
        raise SettingsError(f"{_NAME}: the embedded store has no replicas. Name a store by --redis-url.")
    return Durability.EVERYSEC


async def look_at_store(settings: Settings, store: Redis) -> None:
    """Logs what an operator should know, once the store answers: one that was just started may read its data first.

    Raises SettingsError where the store can't do what is asked, StoreDown where it stays away.
    """
    await patiently(partial(_look, settings, store))


async def _look(settings: Settings, store: Redis) -> None:
    asked = asked_of(settings)
    try:
        await Confirming(store, asked).check()
    except Unsupported as error:
        raise SettingsError(f"{_NAME}: this store can't do that: {error}") from error
    if settings.redis_url is not None and (older := await older_replicas(store)):
        raise SettingsError(
            f"{len(older)} replicas of an older version still serve from this store, and can't read what this one "
            "writes. Stop them first, and start again 10 s later."
        )
    found = await setups(store)
    for sentence in advice(found, asked):
        _log.warning(sentence)
    for setup in found[:1]:
        _log.info("store", policy=setup.policy, append_only=setup.append_only, fsync=setup.fsync)


_NAME = "MIDSTREAM_STORE_DURABILITY (--store-durability)"
