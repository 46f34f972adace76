"""Whether an open connection may stay, as its JWT expires or its key is revoked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from connections.authentication.identity import Identity
from connections.protocol.errors import Close, CloseCode, Unauthenticated
from connections.protocol.frames import Error, Frame

REFRESH_S = 60.0
"""How long a client has for `auth.refresh` once its token has expired."""
_LONGEST_S = 10 * 365 * 24 * 3600.0  # event loops can't wait until the year 10,000, which tokens may name

Identify = Callable[[str], Awaitable[Identity]]


class AuthenticatedPeer(Protocol):
    """The connection."""

    def push(self, frame: Frame) -> None:
        """Take a frame for delivery."""
        ...

    def shut(self, close: Close) -> None:
        """End the connection once the waiting frames were sent."""
        ...


class SessionValidity:
    """The standing of one connection."""

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

        Raises JwkSetUnavailable, StoreDown if it can't be verified now; the old token stays in force.
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
                Unauthenticated("The token has other rights; connect anew.", why="other rights"), ref=ref
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
        self._after(self._refresh_s, self._overdue)

    def _overdue(self) -> None:
        self._peer.shut(Close(CloseCode.UNAUTHENTICATED, "The token has expired."))

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, then)
