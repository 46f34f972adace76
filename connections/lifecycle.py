"""The lifetime of connections: their leases, their registration, detaching them from conversations, and the shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from connections.connection import Connection
from connections.http.refusal_counters import Refusal
from connections.limits.limiters import Limiters
from connections.manager import ConnectionManager, ManagedConnection
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import GoAway
from sessions.service import Sessions
from sessions.store.redis.fair_slots import on_behalf_of


def _drain_close() -> Close:
    return Close(CloseCode.DRAIN, "The server stops; reconnect.")


class ConnectionLifecycle:
    """Registers connections of all doors."""

    def __init__(self, *, sessions: Sessions, manager: ConnectionManager, limiters: Limiters) -> None:
        self._sessions = sessions
        self._manager = manager
        self._limiters = limiters

    @asynccontextmanager
    async def of(self, connection: Connection) -> AsyncIterator[None]:
        """Register a connection while the block lasts; calls of the store count for it. Raises Close if there is no room."""
        client, number = connection.client, connection.connection_id
        group = connection.caller.group or client.client_id
        with self._counting_refusals(), on_behalf_of(group):
            await self._limiters.leases.acquire(client, number)
        try:
            with on_behalf_of(group):
                with self._counting_refusals():  # last, so that a drain is told after `ready`
                    self._manager.add(connection)
                yield
        finally:
            connection.closed = True
            self._limiters.leases.release(client, number)
            self._manager.discard(connection)
            self._sessions.disconnect(connection)

    def connections(self) -> list[tuple[ManagedConnection, float]]:
        """Return all current connections with their times of opening, in Unix seconds."""
        return self._manager.since()

    def forget(self) -> None:
        """Forget how often those sent who have left. To be called now and then."""
        self._limiters.rates.forget()

    def announce_drain(self, *, drain_ms: int, reason: str) -> None:
        """Tell every connection that the server is about to stop, and accept no others: clients try another replica."""
        self._limiters.handshake_limit.is_closed = True
        for connection in self._manager.connections():
            connection.push(GoAway(drain_ms=drain_ms, reason=reason))

    def close_idle(self) -> None:
        """Close the connections that wait for no reply; clients reconnect."""
        busy = set[object](self._sessions.readers())
        for connection in self._manager.connections():
            if not (connection.is_busy or connection in busy):
                connection.shut(_drain_close())

    async def shut_all(self, *, within_s: float) -> None:
        """Close every connection and wait until they have gone, or the time is up; clients reconnect."""
        self._manager.shut_all(_drain_close())
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._manager.emptied()

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
