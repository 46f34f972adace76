"""Which pages may open a socket here (RFC 6454 origins). Browsers do not apply CORS to WebSockets, so the server must."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit


def is_allowed(origin: str | None, *, host: str | None, allowed: Collection[str]) -> bool:
    """Whether a handshake with this `Origin` may go on.

    Allowed are: no origin (no browser), the server's own (its host and port are those of the `Host` header), and
    exact members of `allowed`. An opaque origin (`null`) is none of these.
    """
    if origin is None or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:  # no URL, so nobody's origin
        return False
    return parts.scheme in ("http", "https") and host is not None and parts.netloc.lower() == host.lower()
