"""Under which names the server answers. Pure.

A page of another site can point its own name at this machine (DNS rebinding); its requests then have the server's
origin and only their `Host` tells. So a server that listens on loopback answers to loopback's names alone, unless more are set.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from ipaddress import ip_address

import msgspec

ANY = "*"


class HostRule(msgspec.Struct, frozen=True):
    """`names`: lower case, without ports; `*.example.org` stands for every name below it; None: any name at all."""

    names: frozenset[str] | None

    def admits(self, headers: Sequence[str]) -> bool:
        """Whether a request with these `Host` headers is meant for this server. Without one it comes from no browser."""
        if self.names is None or not headers:
            return True
        if len(headers) > 1:
            return False
        name = _name(headers[0])
        return is_loopback_name(name) or name in self.names or any(_is_below(name, one) for one in self.names)


def host_rule(allowed: Collection[str], *, listening: str) -> HostRule:
    """The rule for an operator's list and the address that is listened on."""
    if ANY in allowed or not (allowed or is_loopback_name(listening.lower())):
        return HostRule(None)
    return HostRule(frozenset(_name(name) for name in (*allowed, listening)))


def is_loopback_name(name: str) -> bool:
    """Whether a name, in lower case, is this machine for every resolver (RFC 6761, section 6.3)."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _name(host: str) -> str:
    """The name in a `Host` header, without its port, its brackets and the root's dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name = host if host.count(":") > 1 else host.partition(":")[0]
    return name.removesuffix(".")


def _is_below(name: str, pattern: str) -> bool:
    return pattern.startswith("*.") and name.endswith(pattern[1:])
