"""The client's address behind proxies, and whether it is allowed. Pure. `X-Forwarded-For` is read from the right, only as far as trusted proxies wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import msgspec

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AllowedAddresses(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed`: addresses that may connect, or none for all; `trusted`: the trusted proxies."""

    allowed: tuple[Network, ...] = ()
    trusted: tuple[Network, ...] = ()

    def client(self, peer: str | None, forwarded_for: Sequence[str]) -> Address | None:
        """Return the address of the client behind this peer, or None if it is not known."""
        return client_address(peer, forwarded_for, trusted=self.trusted)

    def is_trusted(self, peer: str | None) -> bool:
        """Return whether this peer is a trusted proxy."""
        address = None if peer is None else _address(peer)
        return address is not None and _is_in(address, self.trusted)

    def allows(self, client: Address | None) -> bool:
        """Return whether the client with this address may connect. With a list, an unknown address may not."""
        return not self.allowed or (client is not None and _is_in(client, self.allowed))


_CLIENT = "midstream.client"


def set_client_address(scope: MutableMapping[str, Any], address: Address | None) -> None:
    """Note the address of a request's client for the application."""
    scope[_CLIENT] = address


def client_address_of(scope: Mapping[str, Any]) -> Address | None:
    """Return the address of a request's client that the gate noted."""
    found: Address | None = scope[_CLIENT]
    return found


def is_private(address: Address | None) -> bool:
    """Return whether this is an address of this machine or of a private network."""
    return address is not None and not address.is_global


def client_address(
    peer: str | None, forwarded_for: Sequence[str], *, trusted: Iterable[Network]
) -> Address | None:
    """Return the nearest address that is not a trusted proxy's; None if a trusted proxy wrote no address.

    `peer`: the other end of the TCP connection; `forwarded_for`: the values of the header's lines, in order. If all hops are
    trusted, it is the farthest one.
    """
    trusted = tuple(trusted)
    client = None if peer is None else _address(peer)
    hops = [hop.strip() for line in forwarded_for for hop in line.split(",")]
    while hops and client is not None and _is_in(client, trusted):
        client = _address(hops.pop())
    return client


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read CIDR ranges and single addresses. Raises ValueError, which names the one that is neither."""
    return tuple(ip_network(text) for text in texts)


def is_loopback(peer: str | None) -> bool:
    """Return whether the other end is this machine."""
    address = None if peer is None else _address(peer)
    return address is not None and address.is_loopback


def _address(text: str) -> Address | None:
    """Read an address as peers and proxies write it: bare, in brackets, or followed by a port."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _is_in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)
