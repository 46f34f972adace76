"""Prepares a store that was restored from a backup, before any service uses it.

Knows conversations by the keys of their hashes alone, nothing of their contents.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable
from typing import cast

from redis.asyncio import Redis

from sessions.store.redis.client import RENEW, run_script, store_errors
from sessions.store.redis.scan import scan_keys

AT_ONCE = 32
"""Conversations in work at the same time: as many as the client has connections."""


async def begin_epochs(client: Redis) -> int:
    """Begin a new epoch in every conversation; return their number. Raises StoreDown.

    A restored store gives seqs again, to other events. With a new epoch, a client that saw the old ones is sent a gap with a
    snapshot. Doing this twice does no harm.
    """
    total = 0
    async for names in _parts(client):
        total += sum(await asyncio.gather(*(_begin(client, name) for name in names)))
    return total


async def _begin(client: Redis, name: str) -> bool:
    with store_errors():
        epoch = await cast("Awaitable[bytes | None]", client.hget(name, "epoch"))
    if epoch is None:  # it expired meanwhile
        return False
    return await run_script(client, RENEW, [name], [epoch, secrets.token_hex(8)]) is not None


async def _parts(client: Redis) -> AsyncIterator[list[str]]:
    part: list[str] = []
    async for name in scan_keys(client, "ms:{*}", kind="HASH"):
        part.append(name)
        if len(part) == AT_ONCE:
            yield part
            part = []
    if part:
        yield part
