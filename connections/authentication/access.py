"""Who may come in, and who may stay: origins and tokens at the door, and the open connections that rest on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from connections.authentication.authenticator import Authenticator, bearer
from connections.authentication.identity import Identity
from connections.authentication.standing import REFRESH_S, Peer, Standing
from connections.gate.origin import Origins
from connections.wire.errors import Unauthenticated

LOOK_S = 2.0
"""How often a key file is looked at besides; a `hello` always looks."""

_log = structlog.get_logger("midstream.authentication")


class AccessControl:
    """Knows everybody who is in."""

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
        """Who comes, by the handshake's `Authorization` header, or else by a token.

        Raises Unauthenticated; KeySetDown or StoreDown where that can't be told now.
        """
        self.look()
        shown = bearer(authorization)
        with _told_in_the_log():
            return await self._authenticator.identify(token if shown is None else shown)

    async def ticket(self, *, authorization: str | None) -> str:
        """A single-use ticket for whoever shows a key or a JWT. Raises as `identify` does."""
        self.look()
        with _told_in_the_log():
            identity = await self._authenticator.identify_lasting(bearer(authorization))
        return await self._authenticator.ticket_for(identity)

    @contextmanager
    def inside(self, identity: Identity, peer: Peer) -> Iterator[Standing]:
        """Watches over a connection while it is open."""
        standing = Standing(identity, peer, identify=self._renewed, refresh_s=self._refresh_s)
        self._inside.add(standing)
        try:
            if not self._authenticator.vouches_for(identity):  # revoked while the model was loading
                self._revoke(standing)
            yield standing
        finally:
            self._inside.discard(standing)
            standing.end()

    def look(self) -> None:
        """Notices keys that changed, and ends the connections of those that were revoked."""
        if self._authenticator.look():
            self._turn_out()

    def reread(self) -> None:
        """Reads keys and origins again, whether or not they changed."""
        self.origins.reread()
        self._authenticator.reread()
        self._turn_out()

    async def watch(self) -> None:
        """Looks from time to time, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    async def _renewed(self, token: str) -> Identity:
        return await self.identify(authorization=None, token=token)

    def _turn_out(self) -> None:
        for standing in list(self._inside):
            if not self._authenticator.vouches_for(standing.identity):
                self._revoke(standing)

    def _revoke(self, standing: Standing) -> None:
        _log.info("connection ended: its key was revoked", principal=standing.identity.principal)
        standing.revoke(Unauthenticated("The key was revoked.", why="revoked"))


@contextmanager
def _told_in_the_log() -> Iterator[None]:
    """Says why somebody was turned away, in words that hold nothing of the token."""
    try:
        yield
    except Unauthenticated as refused:
        _log.info("turned away", why=refused.why)
        raise
