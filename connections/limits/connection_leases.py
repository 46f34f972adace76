"""Limits of open connections: of clients and keys over all replicas, and of unauthenticated ones at this replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address
from typing import Protocol

from connections.middleware.client_address import Address
from connections.protocol.errors import Close, CloseCode
from sessions.records import Client


class ConnectionLeases(Protocol):
    """Connections of clients and keys, counted over all replicas."""

    async def acquire(self, client: Client, connection_id: str) -> None:
        """Count a connection. Raises Close if its client or its key has too many."""
        ...

    def release(self, client: Client, connection_id: str) -> None:
        """Stop counting it."""
        ...


class UnlimitedLeases:
    """Seats without a limit."""

    async def acquire(self, client: Client, connection_id: str) -> None:
        """There is room."""

    def release(self, client: Client, connection_id: str) -> None:
        """Nothing was counted."""


SHARE = 8
LEAST_SHARE = 16
HOUSEHOLD_BITS = 64
"""Prefix of an IPv6 address: a subscriber usually has a whole network."""


class HandshakeLimit:
    """Connections that are not admitted yet: their `hello` is awaited, or their token is being verified.

    One address has an eighth of the slots at most, and so have all clients whose address is not known, together. Clients of
    this machine have no such share.
    """

    def __init__(self, *, slots: int) -> None:
        self._free = slots
        self._share = max(LEAST_SHARE, slots // SHARE)
        self._taken: Counter[Address | None] = Counter()
        self.is_closed = False
        """Whether the server is about to stop, and accepts no connection."""

    @property
    def is_full(self) -> bool:
        """Return whether the next one has to be refused."""
        return self._free <= 0

    def is_full_for_address(self, address: Address | None) -> bool:
        """Return whether this address has its share. None: addresses that a proxy did not name; they have one share together."""
        return self._taken[_network_of(address)] >= self._share and not (address and address.is_loopback)

    @contextmanager
    def slot(self, address: Address | None) -> Iterator[None]:
        """Hold a slot while the block lasts."""
        network = _network_of(address)
        self._free -= 1
        self._taken[network] += 1
        try:
            yield
        finally:
            self._free += 1
            self._taken[network] -= 1
            if not self._taken[network]:
                del self._taken[network]


def _network_of(address: Address | None) -> Address | None:
    if not isinstance(address, IPv6Address):
        return address
    rest = 128 - HOUSEHOLD_BITS
    return IPv6Address(int(address) >> rest << rest)


def too_many_connections(network: str, limit: int) -> Close:
    """Return the close of a connection for which there is no room."""
    return Close(CloseCode.TOO_MANY_CONNECTIONS, f"A {network} has at most {limit} connections.")
