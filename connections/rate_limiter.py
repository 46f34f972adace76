"""Counts a connection's requests, and holds messages while their shared limits are counted; later ones wait, too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Generic, TypeVar

from connections.connection import Connection, Handler
from connections.http.refusal_counters import Refusal
from connections.limits.limiters import Limiters
from connections.limits.quota_limiter import QuotaLimiter
from connections.limits.quotas import RateLimited
from connections.protocol.audio import AudioStop, Played, Sound
from connections.protocol.frame_kinds import FrameCost, cost_of
from connections.protocol.frames import AuthRefresh, Cancel, Hello, Ping
from sessions.errors import Overloaded

MAX_WAITING = 32
"""Fewer than a connection's concurrent requests, so that a cancel behind them still has room."""

PendingWork = Coroutine[None, None, None]
MessageT = TypeVar("MessageT")
_NEVER_WAIT = (Hello, Ping, AuthRefresh, Sound, Played)


class RateLimiter(Generic[MessageT]):
    """A `Handler` on top of another one, for one connection.

    A request counts as pending from its task's first step. That is before the connection's next frame: the reader yields between two.
    """

    def __init__(self, inner: Handler[MessageT], limiters: Limiters) -> None:
        self._inner = inner
        self._limiters = limiters
        self._one_by_one = asyncio.Lock()
        self._in_flight = 0

    def handle(self, connection: Connection, frame: MessageT) -> PendingWork | None:
        """Pass a frame on at once, unless it has to wait. Raises BadFrame, BadParams, Refused."""
        counts = cost_of(frame)
        self._take(connection, counts)
        quota_limiter = self._limiters.quota_limiter
        is_message = counts is FrameCost.MESSAGE
        is_limited = is_message and quota_limiter is not None and quota_limiter.limits(connection.client)
        waits = is_limited or (self._in_flight and not isinstance(frame, _NEVER_WAIT))
        if quota_limiter is None or not waits:
            return self._inner.handle(connection, frame)
        if self._in_flight >= MAX_WAITING and not isinstance(frame, Cancel | AudioStop):
            raise Overloaded("Too many requests at once.")
        return self._in_turn(connection, frame, quota_limiter if is_message else None)

    def _take(self, connection: Connection, counts: FrameCost) -> None:
        try:
            self._limiters.rates.take(counts, connection.caller.subject)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise

    async def _in_turn(
        self, connection: Connection, frame: MessageT, quota_limiter: QuotaLimiter | None
    ) -> None:
        self._in_flight += 1
        try:
            async with self._one_by_one:
                if quota_limiter is not None:
                    for near in await quota_limiter.admit(connection.client):
                        connection.push(near)
                slow = self._inner.handle(connection, frame)
        finally:
            self._in_flight -= 1
        if slow is not None:
            await slow
