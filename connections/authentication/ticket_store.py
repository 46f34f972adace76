"""Tickets in Redis, where every replica finds them."""

from __future__ import annotations

from redis.asyncio import Redis

from sessions.store.redis.client import PUT, run_script, store_errors
from sessions.store.redis.pool import on_behalf_of

GROUP = "/tickets"
"""Whose calls of the store these are: who shows a ticket is not known before."""


class RedisTickets:
    """A `TicketStore` (`connections.authentication.tickets`).

    A retry of the Redis client can't admit a ticket twice: GETDEL repeated after a lost answer finds nothing.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def keep(self, name: str, content: bytes, *, ttl_s: int) -> None:
        """Store a ticket, in a full store, too. Raises StoreDown."""
        with on_behalf_of(GROUP):
            await run_script(self._client, PUT, [_key(name)], [content, ttl_s * 1000])

    async def take(self, name: str) -> bytes | None:
        """Return and delete a ticket. Raises StoreDown."""
        with on_behalf_of(GROUP), store_errors():
            content = await self._client.getdel(_key(name))
        return content.encode() if isinstance(content, str) else content


def _key(name: str) -> str:
    return f"ms:ticket:{name}"
