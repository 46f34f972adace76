"""The host names that the server answers to. Pure.

A page of another site can point its own name at this machine (DNS rebinding). Its requests then have the server's origin, and
only their `Host` shows it. So a server on loopback, and one without authentication, answers only to loopback's names, unless more
are set.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import ip_address

import msgspec

ANY = "*"


class AllowedHosts(msgspec.Struct, frozen=True):
    """`names`: lower case, without ports; `*.example.org` matches every name below it; None: any name.

    `addresses`: whether any IP address is one of them, since nobody can point an address at another machine.
    """

    names: frozenset[str] | None
    addresses: bool = False

    def allows(self, headers: Sequence[str]) -> bool:
        """Return whether a request with these `Host` headers is for this server. Without one it is not from a browser."""
        if self.names is None or not headers:
            return True
        if len(headers) > 1:
            return False
        name = _name(headers[0])
        if self.addresses and _is_address(name):
            return True
        return is_loopback_name(name) or name in self.names or any(_is_below(name, one) for one in self.names)


def allowed_hosts_for(allowed: Collection[str], *, listening: str, authenticates: bool) -> AllowedHosts:
    """Make the rule from an operator's list and the listening address.

    Without authentication, a page that gets past it may do what its reader may. So any name has to be allowed by `*`.
    """
    is_local = is_loopback_name(listening.lower())
    if ANY in allowed or (not (allowed or is_local) and authenticates):
        return AllowedHosts(None)
    names = frozenset(_name(name) for name in (*allowed, listening))
    return AllowedHosts(names, addresses=not (is_local or authenticates))


def is_loopback_name(name: str) -> bool:
    """Return whether every resolver takes a lower-case name for this machine (RFC 6761, section 6.3)."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """Return the name in a `Host` header, without port, brackets and final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host if host.count(":") > 1 else host.partition(":")[0]
    return name.removesuffix(".")


def _is_below(name: str, pattern: str) -> bool:
    return pattern.startswith("*.") and name.endswith(pattern[1:])
