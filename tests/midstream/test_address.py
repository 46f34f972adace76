"""Where a service is, as people write it."""

from __future__ import annotations

import pytest

from midstream.server_connection import origin_of, socket_url


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
        ("127.1.2.3:8000", "ws://127.1.2.3:8000/v1/ws"),
        ("chat.example:443/v1/ws", "wss://chat.example:443/v1/ws"),
        ("192.168.0.7:8000", "wss://192.168.0.7:8000/v1/ws"),
        ("localhost.example:8000", "wss://localhost.example:8000/v1/ws"),
        ("http://192.168.0.7:8000", "ws://192.168.0.7:8000/v1/ws"),
        ("not-a-url", "not-a-url"),
        ("ftp://chat.example", "ftp://chat.example"),
    ],
)
def test_what_people_write_becomes_the_url_of_the_socket(written: str, url: str) -> None:
    assert socket_url(written) == url


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("ws://127.0.0.1:8000/v1/ws", "ws://localhost:8000"),
        ("ws://[::1]:8000/v1/ws", "ws://localhost:8000"),
        ("wss://Chat.Example/a/v1/ws", "wss://chat.example:443"),
        ("ws://chat.example/v1/ws", "ws://chat.example:80"),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: str) -> None:
    assert origin_of(url) == origin
