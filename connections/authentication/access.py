"""Admits clients by origin and token, and ends open connections whose token is no longer valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from connections.authentication.api_keys import ApiKey
from connections.authentication.authenticator import Authenticator, bearer
from connections.authentication.identity import ANONYMOUS, Identity
from connections.authentication.key_policy import Allowance
from connections.authentication.session_validity import REFRESH_S, AuthenticatedPeer, SessionValidity
from connections.middleware.origins import AllowedOrigins
from connections.protocol.errors import Unauthenticated

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
