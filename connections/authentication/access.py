"""Admits clients by origin and token, and ends open connections whose token is no longer valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from connections.authentication.api_keys import ApiKey
from connections.authentication.authenticator import Authenticator, bearer
from connections.authentication.identity import ANONYMOUS, Identity
from connections.authentication.standing import REFRESH_S, Peer, Standing
from connections.authentication.terms import Allowance
from connections.gate.origin import Origins
from connections.wire.errors import Unauthenticated

_log = structlog.get_logger("midstream.authentication")


class AccessControl:
    """Knows all admitted connections."""

    def __init__(
        self, *, authenticator: Authenticator, origins: Origins, refresh_s: float = REFRESH_S
    ) -> None:
        self.origins = origins
        self._authenticator = authenticator
        self._refresh_s = refresh_s
        self._inside: set[Standing] = set()

    @property
    def asks_nobody(self) -> bool:
        """Whether no authentication is configured."""
        return self._authenticator.asks_nobody

    async def identify(self, *, authorization: str | None, token: str | None = None) -> Identity:
        """Return the identity of the handshake's `Authorization` header, or else of a token.

        Raises Unauthenticated; KeySetDown or StoreDown if it can't be verified now.
        """
        self.look()
        shown = bearer(authorization)
        with _told_in_the_log():
            return await self._authenticator.identify(token if shown is None else shown)

    async def identify_lasting(self, *, authorization: str | None) -> Identity:
        """Return the identity of a key or a JWT, not of a ticket. Raises Unauthenticated; KeySetDown if it can't be verified now."""
        if self.asks_nobody:
            return ANONYMOUS
        self.look()
        with _told_in_the_log():
            return await self._authenticator.identify_lasting(bearer(authorization))

    def identify_operator(self, *, authorization: str | None) -> Identity:
        """Return the operator of a request's `Authorization` header. Raises Unauthenticated."""
        self.look()
        with _told_in_the_log():
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
        identity = await self.identify_lasting(authorization=authorization)
        admit(identity)
        return await self._authenticator.ticket_for(identity)

    @contextmanager
    def inside(self, identity: Identity, peer: Peer) -> Iterator[Standing]:
        """Watch a connection while it is open."""
        standing = Standing(identity, peer, identify=self._renewed, refresh_s=self._refresh_s)
        self._inside.add(standing)
        try:
            self._look_at(standing)  # revoked while the model was loading
            yield standing
        finally:
            self._inside.discard(standing)
            standing.end()

    def look(self) -> None:
        """Notice keys that changed or expired, and end their connections."""
        if self._authenticator.look():
            self._turn_out()

    def reread(self) -> None:
        """Reread keys and origins, whether or not they changed."""
        self.origins.reread()
        self._authenticator.reread()
        self._turn_out()

    async def _renewed(self, token: str) -> Identity:
        return await self.identify(authorization=None, token=token)

    def _turn_out(self) -> None:
        for standing in list(self._inside):
            self._look_at(standing)

    def _look_at(self, standing: Standing) -> None:
        """End a connection whose key has changed."""
        if (why := self._authenticator.against(standing.identity)) is not None:
            _log.info("connection ended by its key", principal=standing.identity.principal, why=why)
            standing.revoke(Unauthenticated(why, why="the key has changed"))


@contextmanager
def _told_in_the_log() -> Iterator[None]:
    """Log why a client was refused, without any part of the token."""
    try:
        yield
    except Unauthenticated as refused:
        _log.info("turned away", why=refused.why)
        raise
