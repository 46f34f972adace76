"""Which pages may open a socket."""

from __future__ import annotations

import pytest
from starlette.requests import HTTPConnection

from connections.middleware import is_allowed, is_secure

ALLOWED = ("https://intranet.example.org",)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "chat.example.org"),  # no browser
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("https://chat.example.org", "chat.example.org"),
        ("https://Chat.Example.org", "chat.example.ORG"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("https://intranet.example.org", "chat.example.org"),
    ],
)
def test_the_servers_own_pages_and_listed_ones_may(origin: str | None, host: str) -> None:
    assert is_allowed(origin, host=host, allowed=ALLOWED)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://evil.example", "chat.example.org"),
        ("http://127.0.0.1:9000", "127.0.0.1:8000"),  # another port is another origin
        ("http://intranet.example.org", "chat.example.org"),  # listed with https
        ("https://intranet.example.org.evil.example", "chat.example.org"),
        ("https://chat.example.org@evil.example", "chat.example.org"),
        ("null", "chat.example.org"),
        ("null", "null"),
        ("", "chat.example.org"),
        ("", ""),
        ("file://chat.example.org", "chat.example.org"),
        ("http://[", "["),
        ("http://chat.example.org", None),
    ],
)
def test_nobody_elses_pages_may(origin: str, host: str | None) -> None:
    assert not is_allowed(origin, host=host, allowed=ALLOWED)


@pytest.mark.parametrize(
    ("scheme", "forwarded", "origin", "admitted"),
    [
        ("https", None, "https://chat.example", True),
        ("wss", None, "http://chat.example", False),
        ("http", "https", "http://chat.example", False),
        ("ws", "http, https", "http://chat.example", False),
        ("http", "https", "https://chat.example", True),
        ("http", None, "https://chat.example", True),
        ("http", "http", "http://chat.example", True),
    ],
)
def test_a_page_without_tls_is_another_origin_than_a_server_with_it(
    scheme: str, forwarded: str | None, origin: str, *, admitted: bool
) -> None:
    """A proxy may end TLS and not say so."""
    headers = [] if forwarded is None else [(b"x-forwarded-proto", forwarded.encode())]
    secure = is_secure(HTTPConnection({"type": "http", "scheme": scheme, "headers": headers}))
    assert is_allowed(origin, host="chat.example", allowed=(), secure=secure) is admitted
