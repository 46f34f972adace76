"""Which address a request really comes from, and whether it may come in. Pure; `X-Forwarded-For` is believed from the right, only as far as trusted proxies wrote it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import msgspec

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class AddressRule(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed`: whose addresses may come in, none named: everybody's; `trusted`: the proxies whose word counts."""

    allowed: tuple[Network, ...] = ()
    trusted: tuple[Network, ...] = ()

    def client(self, peer: str | None, forwarded_for: Sequence[str]) -> Address | None:
        """The address of the client behind this peer, where it can be known."""
        return client_address(peer, forwarded_for, trusted=self.trusted)

    def admits(self, peer: str | None, forwarded_for: Sequence[str]) -> bool:
        """Whether the client behind this peer may come in; one whose address can't be known may not, where a list rules."""
        if not self.allowed:
            return True
        client = self.client(peer, forwarded_for)
        return client is not None and _is_in(client, self.allowed)


_CLIENT = "midstream.client"


def note_client(scope: MutableMapping[str, Any], address: Address | None) -> None:
    """Keep the address of a request's client for those behind the gate."""
    scope[_CLIENT] = address


def client_of(scope: Mapping[str, Any]) -> Address | None:
    """Return the address of a request's client, as the gate found it."""
    found: Address | None = scope[_CLIENT]
    return found


def client_address(
    peer: str | None, forwarded_for: Sequence[str], *, trusted: Iterable[Network]
) -> Address | None:
    """The nearest address that is no trusted proxy's; None where a trusted one wrote what is no address.

    `peer`: the other end of the TCP connection; `forwarded_for`: the values of the header's lines, in their order. Where
    all hops are trusted, it is the farthest one.
    """
    trusted = tuple(trusted)
    client = None if peer is None else _address(peer)
    hops = [hop.strip() for line in forwarded_for for hop in line.split(",")]
    while hops and client is not None and _is_in(client, trusted):
        client = _address(hops.pop())
    return client


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """CIDR ranges and single addresses. Raises ValueError, which names the one that is neither."""
    return tuple(ip_network(text) for text in texts)


def is_loopback(peer: str | None) -> bool:
    """Whether the other end is this machine."""
    address = None if peer is None else _address(peer)
    return address is not None and address.is_loopback


def _address(text: str) -> Address | None:
    """An address as peers and proxies write it: bare, in brackets, or with a port behind it."""
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
