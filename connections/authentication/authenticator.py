"""From a token to whom it stands for, whichever kind of token it is."""

from __future__ import annotations

from connections.authentication.api_keys import ApiKey, Kind
from connections.authentication.identity import ANONYMOUS, KEY, Identity, of_key
from connections.authentication.json_web_tokens import JsonWebTokens
from connections.authentication.key_ring import KeyRing
from connections.authentication.terms import NO_ALLOWANCE, Allowance
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
            if (why := self.against(identity)) is not None:
                raise Unauthenticated(why, why="the ticket's key is not what it was")
            return identity
        return await self.identify_lasting(token)

    async def identify_lasting(self, token: str | None) -> Identity:
        """Whom a key or a JWT stands for. Raises Unauthenticated, KeySetDown."""
        if not token:
            raise Unauthenticated("A token is needed: an API key, a JWT or a ticket.", why="no token")
        if token.startswith(TICKET):
            raise Unauthenticated("A ticket does not do here: show the key or the JWT.", why="a ticket")
        if self._keys is not None and (key := self._keys.find(token)) is not None:
            if key.kind is Kind.ADMIN:
                raise Unauthenticated("This key opens the admin API alone.", why="an admin key")
            return of_key(self._unexpired(self._keys, key))
        if self._web_tokens is not None:
            return await self._web_tokens.identify(token)
        raise Unauthenticated(why="no such key")

    def identify_operator(self, token: str | None) -> Identity:
        """The name of the operator's key that a token is. Only such a key is one, whatever else lets clients in.

        Raises Unauthenticated.
        """
        key = None if self._keys is None or not token else self._keys.find(token)
        if self._keys is None or key is None or key.kind is not Kind.ADMIN:
            raise Unauthenticated("The admin API needs an admin key.", why="no admin key")
        return of_key(self._unexpired(self._keys, key))

    @staticmethod
    def _unexpired(keys: KeyRing, key: ApiKey) -> ApiKey:
        if keys.has_expired(key):
            raise Unauthenticated("The key has expired.", why="an expired key")
        return key

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All API keys."""
        return () if self._keys is None else self._keys.keys

    def allowance_of(self, principal: str) -> Allowance:
        """How much a principal may ask for by the terms of its key."""
        if self._keys is None or not principal.startswith(KEY):
            return NO_ALLOWANCE
        key = self._keys.named(principal.removeprefix(KEY))
        return NO_ALLOWANCE if key is None else key.terms.allowance

    async def ticket_for(self, identity: Identity) -> str:
        """A single-use ticket. Raises StoreDown."""
        return await self._tickets.issue(identity)

    def against(self, identity: Identity) -> str | None:
        """Why an identity is good no longer, in words for whoever has it; None where it is. JWTs end by themselves."""
        if identity.key is None:
            return None
        return "The key was revoked." if self._keys is None else self._keys.against(identity)

    def look(self) -> bool:
        """Whether keys changed or expired meanwhile; costs a `stat`."""
        return self._keys is not None and self._keys.look()

    def reread(self) -> None:
        """Reads the keys again."""
        if self._keys is not None:
            self._keys.reread()


def bearer(authorization: str | None) -> str | None:
    """The token in an `Authorization` header (RFC 6750, section 2.1), if it has one."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
