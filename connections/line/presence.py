"""The lifetime of connections: their seats, their registration, detaching them from conversations, and the shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from connections.http.refusals import Refusal
from connections.limits.limiters import Limiters
from connections.line.connection import Connection
from connections.line.registry import Registered, Registry
from connections.wire.errors import Close, CloseCode
from connections.wire.frames import GoAway
from sessions.service import Sessions
from sessions.store.redis.asker import asking_for


def _goodbye() -> Close:
    return Close(CloseCode.DRAIN, "The server stops; reconnect.")


class Presence:
    """Registers connections of all doors."""

    def __init__(self, *, sessions: Sessions, registry: Registry, limiters: Limiters) -> None:
        self._sessions = sessions
        self._registry = registry
        self._limiters = limiters

    @asynccontextmanager
    async def of(self, connection: Connection) -> AsyncIterator[None]:
        """Register a connection while the block lasts; calls of the store count for it. Raises Close if there is no room.

        Conversations that an older version kept for this client alone move to the person, before the block if that is quick.
        """
        client, number = connection.client, connection.connection_id
        group = connection.caller.group or client.client_id
        with self._counting_refusals(), asking_for(group):
            await self._limiters.seats.sit(client, number)
        try:
            with asking_for(group):
                await self._sessions.adopt(connection.owner, client)
                with self._counting_refusals():  # last, so that a drain is told after `ready`
                    self._registry.add(connection)
                yield
        finally:
            connection.closed = True
            self._limiters.seats.leave(client, number)
            self._registry.discard(connection)
            self._sessions.disconnect(connection)

    def connections(self) -> list[tuple[Registered, float]]:
        """Return all current connections with their times of opening, in Unix seconds."""
        return self._registry.since()

    def forget(self) -> None:
        """Forget how often those sent who have left. To be called now and then."""
        self._limiters.rates.forget()

    def go_away(self, *, drain_ms: int, reason: str) -> None:
        """Tell every connection that the server is about to stop, and accept no others: clients try another replica."""
        self._limiters.waiting_room.is_closed = True
        for connection in self._registry.connections():
            connection.push(GoAway(drain_ms=drain_ms, reason=reason))

    def shut_idle(self) -> None:
        """Close the connections that wait for no reply; clients reconnect."""
        busy = set[object](self._sessions.readers())
        for connection in self._registry.connections():
            if not (connection.is_busy or connection in busy):
                connection.shut(_goodbye())

    async def shut_all(self, *, within_s: float) -> None:
        """Close every connection and wait until they have gone, or the time is up; clients reconnect."""
        self._registry.shut_all(_goodbye())
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._registry.emptied()

    @contextmanager
    def _counting_refusals(self) -> Iterator[None]:
        try:
            yield
        except Close as close:
            if close.code is CloseCode.TOO_MANY_CONNECTIONS:
                self._limiters.refusals.count(Refusal.CONNECTIONS)
            elif close.code is CloseCode.OVERLOAD:
                self._limiters.refusals.count(Refusal.FULL)
            raise
