"""Counts a connection's requests, and holds messages while their shared limits are counted; later ones wait, too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Generic, TypeVar

from connections.http.refusals import Refusal
from connections.limits.limiters import Limiters
from connections.limits.meter import Meter
from connections.limits.quotas import RateLimited
from connections.line.connection import Connection, Handler
from connections.wire.audio import AudioStop, Played, Sound
from connections.wire.frames import AuthRefresh, Cancel, Hello, Ping
from connections.wire.table import Counts, counts_of
from sessions.errors import Overloaded

MAX_WAITING = 32
"""Fewer than a connection's concurrent requests, so that a cancel behind them still has room."""

Slow = Coroutine[None, None, None]
HandledT = TypeVar("HandledT")
_NEVER_WAIT = (Hello, Ping, AuthRefresh, Sound, Played)


class RateLimiter(Generic[HandledT]):
    """A `Handler` on top of another one, for one connection.

    A request counts as pending from its task's first step. That is before the connection's next frame: the reader yields between two.
    """

    def __init__(self, inner: Handler[HandledT], limiters: Limiters) -> None:
        self._inner = inner
        self._limiters = limiters
        self._one_by_one = asyncio.Lock()
        self._under_way = 0

    def handle(self, connection: Connection, frame: HandledT) -> Slow | None:
        """Pass a frame on at once, unless it has to wait. Raises BadFrame, BadParams, Refused."""
        counts = counts_of(frame)
        self._take(connection, counts)
        meter = self._limiters.meter
        is_message = counts is Counts.MESSAGE
        is_limited = is_message and meter is not None and meter.limits(connection.client)
        waits = is_limited or (self._under_way and not isinstance(frame, _NEVER_WAIT))
        if meter is None or not waits:
            return self._inner.handle(connection, frame)
        if self._under_way >= MAX_WAITING and not isinstance(frame, Cancel | AudioStop):
            raise Overloaded("Too many requests at once.")
        return self._in_turn(connection, frame, meter if is_message else None)

    def _take(self, connection: Connection, counts: Counts) -> None:
        try:
            self._limiters.rates.take(counts, connection.caller.subject)
        except RateLimited:
            self._limiters.refusals.count(Refusal.RATE)
            raise

    async def _in_turn(self, connection: Connection, frame: HandledT, meter: Meter | None) -> None:
        self._under_way += 1
        try:
            async with self._one_by_one:
                if meter is not None:
                    for near in await meter.admit(connection.client):
                        connection.push(near)
                slow = self._inner.handle(connection, frame)
        finally:
            self._under_way -= 1
        if slow is not None:
            await slow
