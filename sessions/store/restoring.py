"""What has to be done to a store that was put back from a backup, before anybody is served from it.

Knows conversations by the names of their hashes alone; nothing of what is in them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable
from typing import cast

from redis.asyncio import Redis

from sessions.store.redis.client import RENEW, run_script, store_errors
from sessions.store.redis.scanning import names_like

AT_ONCE = 32
"""Conversations that are asked for at the same time, as many as the client has connections."""


async def begin_epochs(client: Redis) -> int:
    """Begin another epoch in every conversation; return how many there are. Raises StoreDown.

    Seqs of a restored store are given once more, to other events. A client that saw the old ones is then told of a gap
    with a snapshot, also where others went on before it came back. Doing this twice does no harm.
    """
    total = 0
    async for names in _parts(client):
        total += sum(await asyncio.gather(*(_begin(client, name) for name in names)))
    return total


async def _begin(client: Redis, name: str) -> bool:
    with store_errors():
        epoch = await cast("Awaitable[bytes | None]", client.hget(name, "epoch"))
    if epoch is None:  # what an adopted conversation left: a mark
        return False
    return await run_script(client, RENEW, [name], [epoch, secrets.token_hex(8)]) is not None


async def _parts(client: Redis) -> AsyncIterator[list[str]]:
    part: list[str] = []
    async for name in names_like(client, "ms:{*}", kind="HASH"):
        part.append(name)
        if len(part) == AT_ONCE:
            yield part
            part = []
    if part:
        yield part
