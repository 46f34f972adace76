"""Admits clients by origin and token, and ends open connections whose token is no longer valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from connections.authentication.api_key_store import ApiKeyStore
from connections.authentication.api_keys import ApiKey, Kind
from connections.authentication.identity import ANONYMOUS, Identity, of_key
from connections.authentication.json_web_tokens import JsonWebTokens
from connections.authentication.session_validity import REFRESH_S, AuthenticatedPeer, SessionValidity
from connections.authentication.tickets import PREFIX as TICKET
from connections.authentication.tickets import Tickets
from connections.middleware.origins import AllowedOrigins
from connections.protocol.errors import Unauthenticated
from sessions.limits.quotas import NO_ALLOWANCE, Allowance
from sessions.records import KEY


class Authenticator:
    """Asks the key ring, the tickets and the verifier of JWTs, as far as they are configured."""

    def __init__(
        self, *, keys: ApiKeyStore | None, web_tokens: JsonWebTokens | None, tickets: Tickets
    ) -> None:
        self._keys = keys
        self._web_tokens = web_tokens
        self._tickets = tickets

    @property
    def allows_anonymous(self) -> bool:
        """Whether no authentication is configured: everybody is the same principal."""
        return self._keys is None and self._web_tokens is None

    async def identify(self, token: str | None) -> Identity:
        """Return the identity of a token. A ticket is void afterwards.

        Raises Unauthenticated; JwkSetUnavailable or StoreDown if it can't be verified now.
        """
        if self.allows_anonymous:
            return ANONYMOUS
        if token is not None and token.startswith(TICKET):
            identity = await self._tickets.redeem(token)
            if (why := self.revocation_reason(identity)) is not None:
                raise Unauthenticated(why, why="the ticket's key has changed")
            return identity
        return await self.identify_without_ticket(token)

    async def identify_without_ticket(self, token: str | None) -> Identity:
        """Return the identity of a key or a JWT. Raises Unauthenticated, JwkSetUnavailable."""
        if not token:
            raise Unauthenticated("A token is needed: an API key, a JWT or a ticket.", why="no token")
        if token.startswith(TICKET):
            raise Unauthenticated("A ticket is not accepted here: send the key or the JWT.", why="a ticket")
        if self._keys is not None and (key := self._keys.find(token)) is not None:
            if key.kind is Kind.ADMIN:
                raise Unauthenticated("This key is for the admin API only.", why="an admin key")
            return of_key(self._unexpired(self._keys, key))
        if self._web_tokens is not None:
            return await self._web_tokens.identify(token)
        raise Unauthenticated(why="no such key")

    def identify_operator(self, token: str | None) -> Identity:
        """Return the name of the operator's key. Nothing else authenticates an operator.

        Raises Unauthenticated.
        """
        key = None if self._keys is None or not token else self._keys.find(token)
        if self._keys is None or key is None or key.kind is not Kind.ADMIN:
            raise Unauthenticated("The admin API needs an admin key.", why="no admin key")
        return of_key(self._unexpired(self._keys, key))

    @staticmethod
    def _unexpired(keys: ApiKeyStore, key: ApiKey) -> ApiKey:
        if keys.has_expired(key):
            raise Unauthenticated("The key has expired.", why="an expired key")
        return key

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """Return all API keys."""
        return () if self._keys is None else self._keys.keys

    def allowance_of(self, principal: str) -> Allowance:
        """Return the allowance of a principal by its key's terms."""
        if self._keys is None or not principal.startswith(KEY):
            return NO_ALLOWANCE
        key = self._keys.named(principal.removeprefix(KEY))
        return NO_ALLOWANCE if key is None else key.policy.allowance

    async def ticket_for(self, identity: Identity) -> str:
        """Return a single-use ticket. Raises StoreDown."""
        return await self._tickets.issue(identity)

    def revocation_reason(self, identity: Identity) -> str | None:
        """Return why an identity is no longer valid, as a sentence for the client; None if it is. JWTs expire by themselves."""
        if identity.key is None:
            return None
        return "The key was revoked." if self._keys is None else self._keys.revocation_reason(identity)

    @property
    def may_change(self) -> bool:
        """Whether there are keys, which may change or expire."""
        return self._keys is not None

    def reload_if_changed(self) -> bool:
        """Return whether keys changed or expired; costs a `stat`."""
        return self._keys is not None and self._keys.reload_if_changed()

    def reload(self) -> None:
        """Reread the keys."""
        if self._keys is not None:
            self._keys.reload()


def bearer(authorization: str | None) -> str | None:
    """Return the token in an `Authorization` header (RFC 6750, section 2.1), if any."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


_log = structlog.get_logger("midstream.authentication")


class AccessControl:
    """Knows all admitted connections."""

    def __init__(
        self, *, authenticator: Authenticator, origins: AllowedOrigins, refresh_s: float = REFRESH_S
    ) -> None:
        self.origins = origins
        self._authenticator = authenticator
        self._refresh_s = refresh_s
        self._watched: set[SessionValidity] = set()

    @property
    def allows_anonymous(self) -> bool:
        """Whether no authentication is configured."""
        return self._authenticator.allows_anonymous

    async def identify(self, *, authorization: str | None, token: str | None = None) -> Identity:
        """Return the identity of the handshake's `Authorization` header, or else of a token.

        Raises Unauthenticated; JwkSetUnavailable or StoreDown if it can't be verified now.
        """
        self.reload_if_changed()
        shown = bearer(authorization)
        with _logged_rejections():
            return await self._authenticator.identify(token if shown is None else shown)

    async def identify_without_ticket(self, *, authorization: str | None) -> Identity:
        """Return the identity of a key or a JWT, not of a ticket. Raises Unauthenticated; JwkSetUnavailable if it can't be verified now."""
        if self.allows_anonymous:
            return ANONYMOUS
        self.reload_if_changed()
        with _logged_rejections():
            return await self._authenticator.identify_without_ticket(bearer(authorization))

    def identify_operator(self, *, authorization: str | None) -> Identity:
        """Return the operator of a request's `Authorization` header. Raises Unauthenticated."""
        self.reload_if_changed()
        with _logged_rejections():
            return self._authenticator.identify_operator(bearer(authorization))

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """Return all API keys, for operators."""
        return self._authenticator.keys

    def allowance_of(self, principal: str) -> Allowance:
        """Return the allowance of a principal by its key's terms."""
        return self._authenticator.allowance_of(principal)

    async def ticket(self, *, authorization: str | None, admit: Callable[[Identity], None]) -> str:
        """Return a single-use ticket for a key or a JWT. Raises as `identify` and `admit` do."""
        identity = await self.identify_without_ticket(authorization=authorization)
        admit(identity)
        return await self._authenticator.ticket_for(identity)

    @contextmanager
    def watch(self, identity: Identity, peer: AuthenticatedPeer) -> Iterator[SessionValidity]:
        """Watch a connection while it is open."""
        validity = SessionValidity(identity, peer, identify=self._renewed, refresh_s=self._refresh_s)
        self._watched.add(validity)
        try:
            self._close_if_revoked(validity)  # revoked while the model was loading
            yield validity
        finally:
            self._watched.discard(validity)
            validity.end()

    @property
    def may_change(self) -> bool:
        """Whether there are keys, which may change or expire."""
        return self._authenticator.may_change

    def reload_if_changed(self) -> None:
        """Notice keys that changed or expired, and end their connections."""
        if self._authenticator.reload_if_changed():
            self._close_revoked()

    def reload(self) -> None:
        """Reread keys and origins, whether or not they changed."""
        self.origins.reload()
        self._authenticator.reload()
        self._close_revoked()

    async def _renewed(self, token: str) -> Identity:
        return await self.identify(authorization=None, token=token)

    def _close_revoked(self) -> None:
        for validity in list(self._watched):
            self._close_if_revoked(validity)

    def _close_if_revoked(self, validity: SessionValidity) -> None:
        """End a connection whose key has changed."""
        if (why := self._authenticator.revocation_reason(validity.identity)) is not None:
            _log.info("connection closed, key changed", principal=validity.identity.principal, why=why)
            validity.revoke(Unauthenticated(why, why="the key has changed"))


@contextmanager
def _logged_rejections() -> Iterator[None]:
    """Log why a client was refused, without any part of the token."""
    try:
        yield
    except Unauthenticated as refused:
        _log.info("credentials rejected", why=refused.why)
        raise
