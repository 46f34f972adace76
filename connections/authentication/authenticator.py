"""From a token to whom it stands for, whichever kind of token it is."""

from __future__ import annotations

from connections.authentication.identity import ANONYMOUS, Identity, of_key
from connections.authentication.json_web_tokens import JsonWebTokens
from connections.authentication.key_ring import KeyRing
from connections.authentication.tickets import PREFIX as TICKET
from connections.authentication.tickets import Tickets
from connections.wire.errors import Unauthenticated


class Authenticator:
    """Asks the keys, the tickets and the verifier of JWTs, as far as the operator configured them."""

    def __init__(self, *, keys: KeyRing | None, web_tokens: JsonWebTokens | None, tickets: Tickets) -> None:
        self._keys = keys
        self._web_tokens = web_tokens
        self._tickets = tickets

    @property
    def asks_nobody(self) -> bool:
        """Whether no authentication is configured: everybody is the same principal."""
        return self._keys is None and self._web_tokens is None

    async def identify(self, token: str | None) -> Identity:
        """Whom a token stands for. A ticket is void afterwards.

        Raises Unauthenticated; KeySetDown or StoreDown where that can't be told now.
        """
        if self.asks_nobody:
            return ANONYMOUS
        if token is not None and token.startswith(TICKET):
            identity = await self._tickets.redeem(token)
            if not self.vouches_for(identity):
                raise Unauthenticated(why="the ticket's key was revoked")
            return identity
        return await self.identify_lasting(token)

    async def identify_lasting(self, token: str | None) -> Identity:
        """Whom a key or a JWT stands for. Raises Unauthenticated, KeySetDown."""
        if not token:
            raise Unauthenticated("A token is needed: an API key, a JWT or a ticket.", why="no token")
        if self._keys is not None and (key := self._keys.find(token)) is not None:
            return of_key(key)
        if self._web_tokens is not None:
            return await self._web_tokens.identify(token)
        raise Unauthenticated(why="no such key")

    async def ticket_for(self, identity: Identity) -> str:
        """A single-use ticket. Raises StoreDown."""
        return await self._tickets.issue(identity)

    def vouches_for(self, identity: Identity) -> bool:
        """Whether the key that the identity rests on is still good, and of the same kind; JWTs end by themselves."""
        if identity.key is None:
            return True
        return self._keys is not None and self._keys.holds(identity.key, identity.kind)

    def look(self) -> bool:
        """Whether keys changed meanwhile; costs a `stat`."""
        return self._keys is not None and self._keys.look()

    def reread(self) -> None:
        """Reads the keys again."""
        if self._keys is not None:
            self._keys.reread()


def bearer(authorization: str | None) -> str | None:
    """The token in an `Authorization` header (RFC 6750, section 2.1), if it has one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
