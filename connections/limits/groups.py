"""By what many owners are counted together: the key that they came with, or the address where nobody is asked who they are."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

from starlette.types import Scope

from connections.authentication.identity import ANONYMOUS, Identity

ADDRESS = "midstream.address"
"""Where the entrance notes in a request's scope which address it really comes from."""
ONE_SITE = 64
"""Bits of an IPv6 address that name a site, which has all the rest for itself (RFC 6177)."""


def note_address(scope: Scope, address: IPv4Address | IPv6Address | None) -> None:
    """Notes where a request comes from."""
    if isinstance(address, IPv6Address):
        scope[ADDRESS] = str(ip_network((address, ONE_SITE), strict=False))
    else:
        scope[ADDRESS] = "" if address is None else str(address)


def address_of(scope: Scope) -> str:
    """Where a request comes from; empty where that can't be known, as over a socket that has no addresses."""
    address: str = scope.get(ADDRESS, "")
    return address


def group_of(identity: Identity, scope: Scope) -> str:
    """For whom a request's owner is counted besides."""
    if identity.principal != ANONYMOUS.principal:
        return identity.principal
    address = address_of(scope)
    return f"address:{address}" if address else ""
