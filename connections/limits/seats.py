"""Room for connections: of clients and keys over all replicas, and of those at this one that are not let in yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from connections.wire.errors import Close, CloseCode
from sessions.records import Client


class Seats(Protocol):
    """Connections of clients and keys, counted over all replicas."""

    async def sit(self, client: Client, connection_id: str) -> None:
        """Counts a connection. Raises Close where its client or its key has too many."""
        ...

    def leave(self, client: Client, connection_id: str) -> None:
        """Counts it no longer."""
        ...


class FreeSeats:
    """Seats without a limit."""

    async def sit(self, client: Client, connection_id: str) -> None:
        """There is room."""

    def leave(self, client: Client, connection_id: str) -> None:
        """Nothing was counted."""


class WaitingRoom:
    """Connections that are not let in yet: they have to say hello, or their key is looked at."""

    def __init__(self, *, places: int) -> None:
        self._free = places

    @property
    def is_full(self) -> bool:
        """Whether the next one has to be refused."""
        return self._free <= 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place while the block lasts."""
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


def no_seat(whose: str, limit: int) -> Close:
    """What ends a connection that there is no room for."""
    return Close(CloseCode.TOO_MANY_CONNECTIONS, f"A {whose} has at most {limit} connections.")
