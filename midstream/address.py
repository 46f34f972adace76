"""Reads the address of a service. Pure."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

PATH = "/v1/ws"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_PORTS = {"ws": 80, "wss": 443}
_BARE = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d+(?:/.*)?")


def socket_url(address: str) -> str:
    """Return the WebSocket URL for the URL of the page, or for `host:port`. Anything else is returned unchanged.

    `host:port` means TLS unless it is this machine: keys and client ids are no business of the network between.
    A `ws` or `wss` URL with a path is the WebSocket's own.
    """
    if _BARE.fullmatch(address):
        address = f"ws://{address}" if is_here(urlsplit(f"ws://{address}").hostname) else f"wss://{address}"
    parts = urlsplit(address)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        return address
    path = parts.path.rstrip("/")
    if not path or (parts.scheme.startswith("http") and not path.endswith(PATH)):
        path += PATH
    return urlunsplit(parts._replace(scheme=_SCHEMES[parts.scheme], path=path, fragment=""))


def is_here(host: str | None) -> bool:
    """Return whether a host's name or address is this machine's loopback interface."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def origin_of(url: str) -> str:
    """Return scheme, host and port of a WebSocket's URL. All names of this machine are one."""
    parts = urlsplit(url)
    host = "localhost" if is_here(parts.hostname) else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS.get(parts.scheme)}"
