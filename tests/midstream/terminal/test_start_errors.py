"""What a chat says that can't begin."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest

from midstream import Disconnected, NotConnected
from midstream.terminal.session import error_message

REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        (
            "ws://127.0.0.1:1/v1/ws",
            REFUSED,
            "Nothing listens at 127.0.0.1:1; start it with `midstream serve`, or name another place: `midstream chat HOST:PORT`.",
        ),
        ("ws://chat.example/v1/ws", REFUSED, "Nothing listens at chat.example; is the service running?"),
        (
            "ws://localhost:1/v1/ws",
            OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1), [Errno 111] …"),
            "Nothing listens at localhost:1; start it with `midstream serve`, or name another place: `midstream chat HOST:PORT`.",
        ),
        ("ws://no.example/v1/ws", socket.gaierror(-2, "?"), "Unknown host: no.example."),
        (
            "wss://a.example/v1/ws",
            ssl.SSLError("bad"),
            "a.example can't be reached by TLS: ('bad',). If it has no TLS, write ws://a.example.",
        ),
        ("ws://a.example/v1/ws", TimeoutError(), "a.example does not answer."),
        ("ws://a.example/v1/ws", Disconnected(1013, "Full."), "a.example: disconnected (1013): Full."),
        ("ws://a.example/v1/ws", OSError(5, "Broken"), "a.example: [Errno 5] Broken"),
        (
            "ws://a.example/x",
            NotConnected("HTTP 404"),
            "ws://a.example/x is not a chat service, or denied access: HTTP 404",
        ),
    ],
)
def test_a_service_that_is_not_reached_is_told_in_a_sentence(url: str, error: OSError, message: str) -> None:
    assert error_message(url, error) == message
