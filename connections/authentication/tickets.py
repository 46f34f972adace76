"""Single-use tickets: a page can't set headers on a WebSocket, and should not put a lasting token into its URL.

The store has only a ticket's digest, so reading the store admits nobody.
"""

from __future__ import annotations

import secrets

import msgspec
from redis.asyncio import Redis

from connections.authentication.api_keys import digest_of
from connections.authentication.identity import Identity
from connections.protocol.errors import Unauthenticated
from sessions.limits.slots import on_behalf_of
from sessions.store.redis.client import PUT, run_script
from sessions.store_errors import store_errors

PREFIX = "mst_"
TTL_S = 30
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Identity).decode
GROUP = "/tickets"
"""Whose calls of the store these are: who shows a ticket is not known before."""


class Tickets:
    """Makes and accepts tickets, in a full store, too.

    A retry of the Redis client can't admit a ticket twice: GETDEL repeated after a lost answer finds nothing.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def issue(self, identity: Identity) -> str:
        """Return a ticket that admits its bearer as this identity, once, within `TTL_S`. Raises StoreDown."""
        ticket = f"{PREFIX}{secrets.token_urlsafe(32)}"
        with on_behalf_of(GROUP):
            await run_script(self._client, PUT, [_key(ticket)], [_encode(identity), TTL_S * 1000])
        return ticket

    async def redeem(self, ticket: str) -> Identity:
        """Return the ticket's identity; it is void from now on. Raises Unauthenticated, StoreDown."""
        with on_behalf_of(GROUP), store_errors():
            kept = await self._client.getdel(_key(ticket))
        if kept is None:
            raise Unauthenticated(why="no such ticket: used, expired or never issued")
        return _decode(kept)


def _key(ticket: str) -> str:
    return f"ms:ticket:{digest_of(ticket)}"
