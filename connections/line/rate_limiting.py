"""Holds a connection's messages until they are let in, and what comes behind them too, so that their order stays."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from connections.limits.meter import Meter
from connections.line.connection import Connection, Handler
from connections.wire.frames import AuthRefresh, Cancel, Edit, Hello, Ping, Regenerate, Request, Send
from sessions.errors import Overloaded

MAX_WAITING = 32
"""Fewer than a connection's requests at once: a cancel behind so many still finds its place."""

Slow = Coroutine[None, None, None]


class Turnstile:
    """A `Handler` before another one, for one connection.

    A request counts as under way from its task's first step on. That is before the connection's next frame: its reader
    lets others run between two.
    """

    def __init__(self, inner: Handler[Request], meter: Meter) -> None:
        self._inner = inner
        self._meter = meter
        self._one_by_one = asyncio.Lock()
        self._under_way = 0

    def handle(self, connection: Connection, frame: Request) -> Slow | None:
        """Hands a frame on at once, unless it has to wait. Raises BadFrame, BadParams, Refused."""
        is_message = isinstance(frame, Send | Edit | Regenerate)
        waits = is_message or (self._under_way and not isinstance(frame, Hello | Ping | AuthRefresh))
        if not waits:
            return self._inner.handle(connection, frame)
        if self._under_way >= MAX_WAITING and not isinstance(frame, Cancel):
            raise Overloaded("Too many requests at once.")
        return self._in_turn(connection, frame, is_message=is_message)

    async def _in_turn(self, connection: Connection, frame: Request, *, is_message: bool) -> None:
        self._under_way += 1
        try:
            async with self._one_by_one:
                if is_message:
                    for near in await self._meter.admit(connection.client):
                        connection.push(near)
                slow = self._inner.handle(connection, frame)
        finally:
            self._under_way -= 1
        if slow is not None:
            await slow
