"""By what many owners are counted together: the key that they came with, or the address where nobody is asked who they are."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.types import Scope

from connections.authentication.identity import ANONYMOUS, Identity
from connections.gate.client_address import client_of
from sessions.running.shares import ADDRESS

_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
"""Where a proxy that nobody named in MIDSTREAM_TRUSTED_PROXIES stands for all of its clients."""
SITE_BITS = 64
"""Of an IPv6 address: whoever has one of a network usually has them all (RFC 6177)."""


def group_of(identity: Identity, scope: Scope) -> str:
    """For whom a request's owner is counted besides; empty where nobody can tell, as over a socket without addresses."""
    if identity.principal != ANONYMOUS.principal:
        return identity.principal
    return address_group(scope)


def address_group(scope: Scope) -> str:
    """The same by the address alone, as long as nobody has said who they are."""
    address = client_of(scope)
    if address in _LOOPBACK:
        return ""
    return "" if address is None else f"{ADDRESS}{_site(address)}"


def site_of(told: str) -> str:
    """The same of an address as a socket has it, which is what is closest where nothing is parsed so far."""
    try:
        return str(_site(ip_address(told)))
    except ValueError:
        return told


def _site(address: IPv4Address | IPv6Address) -> IPv4Address | IPv4Network | IPv6Network:
    """An address, or the network of one that has it with all others of that."""
    if isinstance(address, IPv4Address):
        return address
    return address.ipv4_mapped or ip_network((address, SITE_BITS), strict=False)
