"""Scans the keys of the whole store, a few at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

from redis.asyncio import Redis

from sessions.store.redis.client import store_errors

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
