"""Admits clients by origin and token, issues tickets, and ends open connections whose token is no longer valid."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import msgspec
import structlog
from redis.asyncio import Redis

from connections.authentication.api_keys import (
    ANONYMOUS,
    ApiKey,
    ApiKeyStore,
    Identity,
    Kind,
    digest_of,
    of_key,
)
from connections.authentication.json_web_tokens import JsonWebTokens
from connections.middleware import AllowedOrigins
from connections.protocol.errors import Close, CloseCode, Unauthenticated
from connections.protocol.frames import Error, Frame
from sessions.limits.quotas import NO_ALLOWANCE, Allowance
from sessions.limits.slots import on_behalf_of
from sessions.records import KEY
from sessions.store.client import PUT, run_script
from sessions.store_errors import store_errors

REFRESH_S = 60.0
"""How long a client has for `auth.refresh` once its token has expired."""
_LONGEST_S = 10 * 365 * 24 * 3600.0  # event loops can't wait until the year 10,000, which tokens may name
TICKET = "mst_"
"""The beginning of every ticket."""
TICKET_S = 30
"""How long a ticket is valid."""
TICKET_GROUP = "/tickets"
"""The group for which calls about tickets count at the store: who shows one is not known before."""
_encode_identity = msgspec.json.Encoder().encode
_decode_identity = msgspec.json.Decoder(Identity).decode
Identify = Callable[[str], Awaitable[Identity]]
_log = structlog.get_logger("midstream.authentication")


class AccessControl:
    """Asks the API keys, the verifier of JWTs and the tickets, as far as they are configured, and knows all admitted connections."""

    def __init__(
        self,
        *,
        keys: ApiKeyStore | None,
        web_tokens: JsonWebTokens | None,
        tickets: Tickets,
        origins: AllowedOrigins,
        refresh_s: float = REFRESH_S,
    ) -> None:
        self.origins = origins
        self._keys = keys
        self._web_tokens = web_tokens
        self._tickets = tickets
        self._refresh_s = refresh_s
        self._watched: set[SessionValidity] = set()

    @property
    def allows_anonymous(self) -> bool:
        """Whether no authentication is configured: everybody is the same principal."""
        return self._keys is None and self._web_tokens is None

    async def identify(self, *, authorization: str | None, token: str | None = None) -> Identity:
        """Return the identity of the handshake's `Authorization` header, or else of a token. A ticket is void afterwards.

        Raises Unauthenticated; JwkSetUnavailable or StoreDown if the token can't be verified now.
        """
        self.reload_if_changed()
        shown = bearer(authorization)
        token = token if shown is None else shown
        with _logged_rejections():
            if self.allows_anonymous or token is None or not token.startswith(TICKET):
                return await self._identify_lasting(token)
            identity = await self._tickets.redeem(token)
            if (why := self._revocation_reason(identity)) is not None:
                raise Unauthenticated(why, why="the ticket's key has changed")
            return identity

    async def identify_without_ticket(self, *, authorization: str | None) -> Identity:
        """Return the identity of a key or a JWT, not of a ticket. Raises Unauthenticated; JwkSetUnavailable if it can't be verified now."""
        self.reload_if_changed()
        with _logged_rejections():
            return await self._identify_lasting(bearer(authorization))

    async def _identify_lasting(self, token: str | None) -> Identity:
        if self.allows_anonymous:
            return ANONYMOUS
        if not token:
            raise Unauthenticated(
                "Authentication required: send an API key, a JWT or a ticket.", why="no token"
            )
        if token.startswith(TICKET):
            raise Unauthenticated(
                "Tickets are not accepted here: send the API key or the JWT.", why="a ticket"
            )
        if self._keys is not None and (key := self._keys.find(token)) is not None:
            if key.kind is Kind.ADMIN:
                raise Unauthenticated("This key is valid for the admin API only.", why="an admin key")
            return _unexpired(self._keys, key)
        if self._web_tokens is not None:
            return await self._web_tokens.identify(token)
        raise Unauthenticated(why="no such key")

    def identify_operator(self, *, authorization: str | None) -> Identity:
        """Return the operator of a request's `Authorization` header. Only an admin key authenticates one. Raises Unauthenticated."""
        self.reload_if_changed()
        token = bearer(authorization)
        with _logged_rejections():
            key = None if self._keys is None or not token else self._keys.find(token)
            if self._keys is None or key is None or key.kind is not Kind.ADMIN:
                raise Unauthenticated("The admin API requires an admin key.", why="no admin key")
            return _unexpired(self._keys, key)

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """All API keys, for operators."""
        return () if self._keys is None else self._keys.keys

    def allowance_of(self, principal: str) -> Allowance:
        """Return the allowance that a principal's key grants."""
        if self._keys is None or not principal.startswith(KEY):
            return NO_ALLOWANCE
        key = self._keys.named(principal.removeprefix(KEY))
        return NO_ALLOWANCE if key is None else key.policy.allowance

    async def ticket(self, *, authorization: str | None, admit: Callable[[Identity], None]) -> str:
        """Return a single-use ticket for a key or a JWT. Raises as `identify_without_ticket` and `admit` do, and StoreDown."""
        identity = await self.identify_without_ticket(authorization=authorization)
        admit(identity)
        return await self._tickets.issue(identity)

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
        return self._keys is not None

    def reload_if_changed(self) -> None:
        """Notice keys that changed or expired, and end their connections; costs a `stat`."""
        if self._keys is not None and self._keys.reload_if_changed():
            self._close_revoked()

    def reload(self) -> None:
        """Reread keys and origins, whether or not they changed."""
        self.origins.reload()
        if self._keys is not None:
            self._keys.reload()
        self._close_revoked()

    async def _renewed(self, token: str) -> Identity:
        return await self.identify(authorization=None, token=token)

    def _revocation_reason(self, identity: Identity) -> str | None:
        """Return why an identity is no longer valid, as a sentence for the client; None if it is. JWTs expire by themselves."""
        if identity.key is None:
            return None
        return "The key was revoked." if self._keys is None else self._keys.revocation_reason(identity)

    def _close_revoked(self) -> None:
        for validity in list(self._watched):
            self._close_if_revoked(validity)

    def _close_if_revoked(self, validity: SessionValidity) -> None:
        """End a connection whose key has changed."""
        if (why := self._revocation_reason(validity.identity)) is not None:
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


def _unexpired(keys: ApiKeyStore, key: ApiKey) -> Identity:
    """Return the identity of a key. Raises Unauthenticated if it has expired."""
    if keys.has_expired(key):
        raise Unauthenticated("The key has expired.", why="an expired key")
    return of_key(key)


def bearer(authorization: str | None) -> str | None:
    """Return the token in an `Authorization` header (RFC 6750, section 2.1), if any."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


class SessionValidity:
    """Ends one open connection when its JWT expires or its key is revoked."""

    def __init__(
        self, identity: Identity, peer: AuthenticatedPeer, *, identify: Identify, refresh_s: float
    ) -> None:
        self.identity = identity
        self._peer = peer
        self._identify = identify
        self._refresh_s = refresh_s
        self._timer: asyncio.TimerHandle | None = None
        self._wait_for_expiry()

    async def refresh(self, token: str, *, ref: str | None) -> bool:
        """Take a new token of the same principal; return whether it is valid. An invalid one ends the connection.

        Raises JwkSetUnavailable, StoreDown if the new token can't be verified now; the old one stays in force.
        """
        try:
            identity = await self._identify(token)
        except Unauthenticated as refused:
            self.revoke(refused, ref=ref)
            return False
        if identity.principal != self.identity.principal:
            other = Unauthenticated("The token belongs to another principal.", why="another principal")
            self.revoke(other, ref=ref)
            return False
        if identity.grant != self.identity.grant:
            self.revoke(
                Unauthenticated("The token has different permissions; reconnect.", why="other rights"),
                ref=ref,
            )
            return False
        self.identity = identity
        self._wait_for_expiry()
        return True

    def revoke(self, why: Unauthenticated, *, ref: str | None = None) -> None:
        """Send the reason and end the connection."""
        self._peer.push(Error(ref=ref, code=why.code, message=str(why), retryable=False))
        self._peer.shut(Close(CloseCode.UNAUTHENTICATED, str(why)))

    def end(self) -> None:
        """Note that the connection has gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for_expiry(self) -> None:
        self.end()
        if self.identity.expires_at is not None:
            left = self.identity.expires_at - time.time()
            self._after(min(max(left, 0.0), _LONGEST_S), self._expire)

    def _expire(self) -> None:
        message = f"The token has expired; send auth.refresh within {self._refresh_s:g} s."
        self._peer.push(Error(code=Unauthenticated.code, message=message, retryable=True))
        late = Close(CloseCode.UNAUTHENTICATED, "The token has expired.")
        self._after(self._refresh_s, partial(self._peer.shut, late))

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, then)


class AuthenticatedPeer(Protocol):
    """The connection, as `SessionValidity` needs it."""

    def push(self, frame: Frame) -> None:
        """Take a frame for delivery."""
        ...

    def shut(self, close: Close) -> None:
        """End the connection once the waiting frames were sent."""
        ...


class Tickets:
    """Makes and accepts single-use tickets, in a full store, too.

    A page can't set headers on a WebSocket, and should not put a lasting token into its URL. The store has only a ticket's
    digest, so reading the store admits nobody. A retry of the Redis client can't admit a ticket twice: GETDEL repeated after a lost answer finds nothing.
    """

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def issue(self, identity: Identity) -> str:
        """Return a ticket that admits its bearer as this identity, once, within `TICKET_S`. Raises StoreDown."""
        ticket = f"{TICKET}{secrets.token_urlsafe(32)}"
        with on_behalf_of(TICKET_GROUP):
            await run_script(
                self._client, PUT, [_ticket_key(ticket)], [_encode_identity(identity), TICKET_S * 1000]
            )
        return ticket

    async def redeem(self, ticket: str) -> Identity:
        """Return the ticket's identity; the ticket is void from now on. Raises Unauthenticated, StoreDown."""
        with on_behalf_of(TICKET_GROUP), store_errors():
            kept = await self._client.getdel(_ticket_key(ticket))
        if kept is None:
            raise Unauthenticated(why="no such ticket: used, expired or never issued")
        return _decode_identity(kept)


def _ticket_key(ticket: str) -> str:
    return f"ms:ticket:{digest_of(ticket)}"
