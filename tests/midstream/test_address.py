"""Where a service is, as people write it."""

from __future__ import annotations

import pytest

from midstream.address import socket_url


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("ws://127.0.0.1:8000/v1/ws", "ws://127.0.0.1:8000/v1/ws"),
        ("http://127.0.0.1:8000", "ws://127.0.0.1:8000/v1/ws"),
        ("http://127.0.0.1:8000/", "ws://127.0.0.1:8000/v1/ws"),
        ("https://chat.example/#c=trees", "wss://chat.example/v1/ws"),
        ("https://example.org/chat/v1/ws", "wss://example.org/chat/v1/ws"),
        ("https://example.org/chat/", "wss://example.org/chat/v1/ws"),
        ("http://example.org/chat#c=trees", "ws://example.org/chat/v1/ws"),
        ("wss://example.org/socket", "wss://example.org/socket"),
        ("localhost:8000", "ws://localhost:8000/v1/ws"),
        ("[::1]:8000", "ws://[::1]:8000/v1/ws"),
        ("chat.example:443/v1/ws", "ws://chat.example:443/v1/ws"),
        ("not-a-url", "not-a-url"),
        ("ftp://chat.example", "ftp://chat.example"),
    ],
)
def test_what_people_write_becomes_the_url_of_the_socket(written: str, url: str) -> None:
    assert socket_url(written) == url
