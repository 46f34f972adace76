"""The open connections of each client, their limits, and their life to shutdown."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from time import time

import msgspec

from connections.connection import Connection
from connections.http import RefusalReason
from connections.limiters import Limiters
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import GoAway
from sessions.limits.quotas import quota_subjects
from sessions.limits.shares import FairShare
from sessions.limits.slots import on_behalf_of
from sessions.records import Client
from sessions.service import Sessions


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """Current counts; `opened` only grows.

    `late`: connections with unsent frames; `waiting_bytes`: of these frames; `most_waiting_bytes`: of one connection.
    """

    connections: int
    clients: int
    opened: int
    late: int = 0
    waiting_bytes: int = 0
    most_waiting_bytes: int = 0


class ConnectionManager:
    """The open connections of each client on this replica, within limits."""

    def __init__(self, *, max_connections: int, max_per_client: int, max_per_key: int | None = None) -> None:
        """`max_per_key`: of all clients of a key or JWT subject; None: no limit."""
        self._max_per_client = max_per_client
        self._max_per_key = max_per_key
        self._by_key: Counter[str] = Counter()
        self._by_client: dict[Client, set[Connection]] = {}
        self._shares = FairShare(max_connections)
        self._opened = 0
        self._since: dict[Connection, float] = {}
        self._emptied = asyncio.Event()
        self._shut: Close | None = None

    def add(self, connection: Connection) -> None:
        """Register a connection. Raises Close if the client or the server has too many, or after `shut_all`."""
        if self._shut is not None:
            raise Close(self._shut.code, self._shut.reason)
        client = connection.caller.client
        own = self._by_client.get(client, set())
        if len(own) >= self._max_per_client:
            raise Close(
                CloseCode.TOO_MANY_CONNECTIONS, f"At most {self._max_per_client} connections per client."
            )
        _, key = quota_subjects(client)
        if self._max_per_key is not None and self._by_key[key] >= self._max_per_key:
            raise Close(CloseCode.TOO_MANY_CONNECTIONS, f"At most {self._max_per_key} connections per key.")
        subject = connection.caller.subject
        if not self._shares.has_capacity_for(subject):
            raise Close(CloseCode.OVERLOAD, "The server accepts no more connections from this client.")
        self._by_client.setdefault(client, own).add(connection)
        self._by_key[key] += 1
        self._shares.take(subject)
        self._emptied.clear()
        self._opened += 1
        self._since[connection] = time()

    def discard(self, connection: Connection) -> None:
        """Remove a connection."""
        client = connection.caller.client
        own = self._by_client.get(client, set())
        if connection in own:
            own.remove(connection)
            _, key = quota_subjects(client)
            self._by_key[key] -= 1
            if not self._by_key[key]:
                del self._by_key[key]
            del self._since[connection]
            self._shares.give_back(connection.caller.subject)
            if not own:
                del self._by_client[client]
            if not len(self._shares):
                self._emptied.set()

    async def emptied(self) -> None:
        """Wait until no connection is left."""
        while len(self._shares):
            await self._emptied.wait()

    def shut_all(self, close: Close) -> None:
        """Close every connection, and refuse new ones."""
        self._shut = close
        for connection in self.connections():
            connection.shut(close)

    def connections(self) -> list[Connection]:
        """Return all current connections."""
        return [connection for own in self._by_client.values() for connection in own]

    def since(self) -> list[tuple[Connection, float]]:
        """Return all current connections, each with the time when it opened, in Unix seconds."""
        return list(self._since.items())

    def statistics(self) -> ConnectionStatistics:
        """Return the current counts."""
        waiting = [some for own in self._by_client.values() for one in own if (some := one.waiting_bytes)]
        return ConnectionStatistics(
            len(self._shares),
            len(self._by_client),
            self._opened,
            late=len(waiting),
            waiting_bytes=sum(waiting),
            most_waiting_bytes=max(waiting, default=0),
        )


def _drain_close() -> Close:
    return Close(CloseCode.DRAIN, "The server is shutting down; reconnect.")


class ConnectionLifecycle:
    """Registers the connections of all endpoints, and ends them in a drain."""

    def __init__(self, *, sessions: Sessions, manager: ConnectionManager, limiters: Limiters) -> None:
        self._sessions = sessions
        self._manager = manager
        self._limiters = limiters

    @asynccontextmanager
    async def registered(self, connection: Connection) -> AsyncIterator[None]:
        """Register a connection while the block lasts; calls to the store count for its group. Raises Close beyond a limit."""
        try:
            with on_behalf_of(connection.caller.store_group):
                with self._counting_refusals():  # last, so that `ready` comes before a drain's announcement
                    self._manager.add(connection)
                yield
        finally:
            connection.closed = True
            self._manager.discard(connection)
            self._sessions.disconnect(connection)

    def connections(self) -> list[tuple[Connection, float]]:
        """Return all current connections, each with the time when it opened, in Unix seconds."""
        return self._manager.since()

    def forget(self) -> None:
        """Forget the rates of clients that have left. To be called now and then."""
        self._limiters.rates.forget()

    def announce_drain(self, *, drain_ms: int, reason: str) -> None:
        """Announce to every connection that the server will stop, and refuse new ones: clients try another replica."""
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
        """Count a refusal."""
        try:
            yield
        except Close as close:
            if close.code is CloseCode.TOO_MANY_CONNECTIONS:
                self._limiters.refusals.count(RefusalReason.CONNECTIONS)
            elif close.code is CloseCode.OVERLOAD:
                self._limiters.refusals.count(RefusalReason.FULL)
            raise
