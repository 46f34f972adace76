"""Reads the address of a service. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

PATH = "/v1/ws"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_BARE = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d+(?:/.*)?")


def socket_url(address: str) -> str:
    """Return the WebSocket URL for the URL of the page, or for `host:port`. Anything else is returned unchanged."""
    if _BARE.fullmatch(address):
        address = f"ws://{address}"
    parts = urlsplit(address)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        return address
    path = parts.path if parts.path.strip("/") else PATH
    return urlunsplit(parts._replace(scheme=_SCHEMES[parts.scheme], path=path, fragment=""))
