"""Reads the address of a service. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit, urlunsplit

PATH = "/v1/ws"
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_BARE = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d+(?:/.*)?")


def socket_url(address: str) -> str:
    """Return the WebSocket URL for the URL of the page, or for `host:port`. Anything else is returned unchanged.

    A `ws` or `wss` URL with a path is the WebSocket's own.
    """
    if _BARE.fullmatch(address):
        address = f"ws://{address}"
    parts = urlsplit(address)
    if parts.scheme not in _SCHEMES or not parts.netloc:
        return address
    path = parts.path.rstrip("/")
    if not path or (parts.scheme.startswith("http") and not path.endswith(PATH)):
        path += PATH
    return urlunsplit(parts._replace(scheme=_SCHEMES[parts.scheme], path=path, fragment=""))
