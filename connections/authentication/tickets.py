"""Single-use tickets: a page can't set headers on a WebSocket, and should not put a lasting token into its URL.

The store has only a ticket's digest, so reading the store admits nobody.
"""

from __future__ import annotations

import secrets
from typing import Protocol

import msgspec

from connections.authentication.api_keys import digest_of
from connections.authentication.identity import Identity
from connections.protocol.errors import Unauthenticated

PREFIX = "mst_"
TTL_S = 30

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Identity).decode


class TicketStore(Protocol):
    """Keeps values that any replica can take once."""

    async def keep(self, name: str, content: bytes, *, ttl_s: int) -> None:
        """Keep a value for so many seconds. Raises StoreDown."""
        ...

    async def take(self, name: str) -> bytes | None:
        """Return and delete a value in one step; None if there is none (any more). Raises StoreDown."""
        ...


class Tickets:
    """Makes and accepts tickets."""

    def __init__(self, store: TicketStore) -> None:
        self._store = store

    async def issue(self, identity: Identity) -> str:
        """Return a ticket that admits its bearer as this identity, once, within `TTL_S`. Raises StoreDown."""
        ticket = f"{PREFIX}{secrets.token_urlsafe(32)}"
        await self._store.keep(digest_of(ticket), _encode(identity), ttl_s=TTL_S)
        return ticket

    async def redeem(self, ticket: str) -> Identity:
        """Return the ticket's identity; it is void from now on. Raises Unauthenticated, StoreDown."""
        kept = await self._store.take(digest_of(ticket))
        if kept is None:
            raise Unauthenticated(why="no such ticket: used, expired or never issued")
        return _decode(kept)
