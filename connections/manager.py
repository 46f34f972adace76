"""The open connections of each client, with their limits."""

from __future__ import annotations

import asyncio
from time import time
from typing import Protocol

import msgspec

from connections.limits.caller import Caller
from connections.protocol.errors import Close, CloseCode
from connections.protocol.frames import Frame
from sessions.fair_share import FairShare
from sessions.records import Client


class ManagedConnection(Protocol):
    """A connection as the manager knows it."""

    @property
    def connection_id(self) -> str:
        """Its name."""
        ...

    @property
    def endpoint(self) -> str:
        """Its endpoint."""
        ...

    @property
    def caller(self) -> Caller:
        """Its caller."""
        ...

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait for its reader."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a request of its client is pending."""
        ...

    def push(self, frame: Frame) -> None:
        """Deliver a frame."""
        ...

    def shut(self, close: Close) -> None:
        """End the connection once the waiting frames were sent."""
        ...


class ConnectionStatistics(msgspec.Struct, frozen=True):
    """Current facts; `opened` only grows. `late`: connections with waiting frames, `waiting_bytes` in all, `most_waiting_bytes` for one."""

    connections: int
    clients: int
    opened: int
    late: int = 0
    waiting_bytes: int = 0
    most_waiting_bytes: int = 0


class ConnectionManager:
    """Client ids and their sockets."""

    def __init__(self, *, max_connections: int, max_per_client: int) -> None:
        self._max_per_client = max_per_client
        self._by_client: dict[Client, set[ManagedConnection]] = {}
        self._shares = FairShare(max_connections)
        self._opened = 0
        self._since: dict[ManagedConnection, float] = {}
        self._emptied = asyncio.Event()
        self._shut: Close | None = None

    def add(self, connection: ManagedConnection) -> None:
        """Register a connection. Raises Close if the client or the server has too many, or all were shut."""
        if self._shut is not None:
            raise Close(self._shut.code, self._shut.reason)
        client = connection.caller.client
        own = self._by_client.get(client, set())
        if len(own) >= self._max_per_client:
            raise Close(
                CloseCode.TOO_MANY_CONNECTIONS, f"A client has at most {self._max_per_client} connections."
            )
        subject = connection.caller.subject
        if not self._shares.has_capacity_for(subject):
            raise Close(CloseCode.OVERLOAD, "The server has no room for more connections from you.")
        self._by_client.setdefault(client, own).add(connection)
        self._shares.take(subject)
        self._emptied.clear()
        self._opened += 1
        self._since[connection] = time()

    def discard(self, connection: ManagedConnection) -> None:
        """Remove a connection."""
        client = connection.caller.client
        own = self._by_client.get(client, set())
        if connection in own:
            own.remove(connection)
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
        """End every connection, also later ones."""
        self._shut = close
        for connection in self.connections():
            connection.shut(close)

    def connections(self) -> list[ManagedConnection]:
        """Return all current connections."""
        return [connection for own in self._by_client.values() for connection in own]

    def since(self) -> list[tuple[ManagedConnection, float]]:
        """Return the same, each with its time of opening, in Unix seconds."""
        return list(self._since.items())

    def statistics(self) -> ConnectionStatistics:
        """Return the current facts."""
        waiting = [some for own in self._by_client.values() for one in own if (some := one.waiting_bytes)]
        return ConnectionStatistics(
            len(self._shares),
            len(self._by_client),
            self._opened,
            late=len(waiting),
            waiting_bytes=sum(waiting),
            most_waiting_bytes=max(waiting, default=0),
        )
