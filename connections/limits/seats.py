"""Limits of open connections: of clients and keys over all replicas, and of unauthenticated ones at this replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from typing import Protocol

from connections.gate.client_address import Address
from connections.wire.errors import Close, CloseCode
from sessions.records import Client


class Seats(Protocol):
    """Connections of clients and keys, counted over all replicas."""

    async def sit(self, client: Client, connection_id: str) -> None:
        """Count a connection. Raises Close if its client or its key has too many."""
        ...

    def leave(self, client: Client, connection_id: str) -> None:
        """Stop counting it."""
        ...


class FreeSeats:
    """Seats without a limit."""

    async def sit(self, client: Client, connection_id: str) -> None:
        """There is room."""

    def leave(self, client: Client, connection_id: str) -> None:
        """Nothing was counted."""


SHARE = 8
LEAST_SHARE = 16
HOUSEHOLD_BITS = 64
"""Prefix of an IPv6 address: a subscriber usually has a whole network."""


class WaitingRoom:
    """Connections that are not admitted yet: their `hello` is awaited, or their token is being verified.

    One address has an eighth of the places at most, and so have all clients whose address is not known, together. Clients of
    this machine have no such share.
    """

    def __init__(self, *, places: int) -> None:
        self._free = places
        self._share = max(LEAST_SHARE, places // SHARE)
        self._taken: Counter[Address | None] = Counter()
        self.is_closed = False
        """Whether the server is about to stop, and accepts no connection."""

    @property
    def is_full(self) -> bool:
        """Return whether the next one has to be refused."""
        return self._free <= 0

    def is_full_for(self, address: Address | None) -> bool:
        """Return whether this address has its share. None: addresses that a proxy did not name; they have one share together."""
        return self._taken[_household(address)] >= self._share and not (address and address.is_loopback)

    @contextmanager
    def place(self, address: Address | None) -> Iterator[None]:
        """Hold a place while the block lasts."""
        whose = _household(address)
        self._free -= 1
        self._taken[whose] += 1
        try:
            yield
        finally:
            self._free += 1
            self._taken[whose] -= 1
            if not self._taken[whose]:
                del self._taken[whose]


def _household(address: Address | None) -> Address | None:
    if not isinstance(address, IPv6Address):
        return address
    rest = 128 - HOUSEHOLD_BITS
    return IPv6Address(int(address) >> rest << rest)


def no_seat(whose: str, limit: int) -> Close:
    """Return the close of a connection for which there is no room."""
    return Close(CloseCode.TOO_MANY_CONNECTIONS, f"A {whose} has at most {limit} connections.")
