"""Looks through the names of the whole store, a little at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

from redis.asyncio import Redis

from sessions.store.redis.client import store_errors

SCANNED = 500
"""Names that the store looks through in one go."""


async def names_like(client: Redis, pattern: str, *, kind: str | None = None) -> AsyncIterator[str]:
    """Give the names that fit a pattern of Redis, some of them more than once. `kind`: a type of Redis. Raises StoreDown."""
    names = client.scan_iter(match=pattern, count=SCANNED, _type=kind)
    while True:
        with store_errors():
            name = await anext(names, None)
        if name is None:
            return
        yield name.decode()
