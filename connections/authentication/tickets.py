"""Single-use tickets: a browser's page can't set headers on a WebSocket, and should not send what lasts.

The store has only a ticket's digest, so that nobody comes in by reading there.
"""

from __future__ import annotations

import secrets
from typing import Protocol

import msgspec

from connections.authentication.api_keys import digest_of
from connections.authentication.identity import Identity
from connections.wire.errors import Unauthenticated

PREFIX = "mst_"
TTL_S = 30

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Identity).decode


class TicketStore(Protocol):
    """Keeps what every replica may take once."""

    async def keep(self, name: str, content: bytes, *, ttl_s: int) -> None:
        """Keeps something for so many seconds. Raises StoreDown."""
        ...

    async def take(self, name: str) -> bytes | None:
        """Gives it and forgets it in one step; None where there is nothing (any more). Raises StoreDown."""
        ...


class Tickets:
    """Makes tickets and takes them in."""

    def __init__(self, store: TicketStore) -> None:
        self._store = store

    async def issue(self, identity: Identity) -> str:
        """A ticket that lets its bearer in as this identity, once, within `TTL_S`. Raises StoreDown."""
        ticket = f"{PREFIX}{secrets.token_urlsafe(32)}"
        await self._store.keep(digest_of(ticket), _encode(identity), ttl_s=TTL_S)
        return ticket

    async def redeem(self, ticket: str) -> Identity:
        """Whom the ticket lets in; it is void from now on. Raises Unauthenticated, StoreDown."""
        kept = await self._store.take(digest_of(ticket))
        if kept is None:
            raise Unauthenticated(why="no such ticket: used, expired or never given")
        return _decode(kept)
