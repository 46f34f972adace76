"""Groups of owners that are counted together: by their key, or by their address without authentication."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.types import Scope

from connections.authentication.api_keys import ANONYMOUS, Identity
from connections.middleware import Network, client_address_of
from sessions.fair_share import ADDRESS

_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
"""Addresses of this machine's own clients. Those of a proxy on it have other addresses, or none that is known."""
_UNKNOWN = "unknown"
SITE_BITS = 64
"""Prefix of an IPv6 address: a subscriber usually has a whole network (RFC 6177)."""


def group_of(identity: Identity, scope: Scope) -> str:
    """Return the group of a request's owner; empty for clients of this machine."""
    if identity.principal != ANONYMOUS.principal:
        return identity.principal
    return address_group(scope)


def address_group(scope: Scope) -> str:
    """Return the group by address alone, before authentication. Clients whose address is not known are one group."""
    address = client_address_of(scope)
    if address in _LOOPBACK:
        return ""
    return f"{ADDRESS}{_UNKNOWN if address is None else _site(address)}"


def peer_group(peer: str, proxies: Iterable[Network] = ()) -> str:
    """Return the group of a socket's peer, before anything is parsed; empty if it stands for all clients of a proxy."""
    try:
        address = _v4_if_mapped(ip_address(peer))
    except ValueError:
        return peer
    is_proxy = address in _LOOPBACK or any(address in network for network in proxies)
    return "" if is_proxy else str(_site(address))


def _site(address: IPv4Address | IPv6Address) -> IPv4Address | IPv4Network | IPv6Network:
    """Return an address, or the network that belongs to one subscriber."""
    address = _v4_if_mapped(address)
    return address if isinstance(address, IPv4Address) else ip_network((address, SITE_BITS), strict=False)


def _v4_if_mapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address
