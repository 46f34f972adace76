"""Requests whose ends an attacker blurs, each with a second request hidden where its body is."""

from __future__ import annotations

import re
from collections.abc import Iterator

HIDDEN = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""A whole request; `UNFINISHED` swallows the request line of the one that follows."""
UNFINISHED = b"GET /version HTTP/1.1\r\nX-Ignored: "
PADDING = b"\r\n" * 400
LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

UPGRADES = {
    "none": b"",
    "foo": b"Upgrade: foo\r\nConnection: Upgrade\r\n",
    "h2c": b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, HTTP2-Settings\r\n",
    "keep-alive": b"Upgrade: foo\r\nConnection: keep-alive, Upgrade\r\n",
    "list": b"Upgrade: websocket, foo\r\nConnection: Upgrade\r\n",
    "two lines": b"Upgrade: websocket\r\nUpgrade: foo\r\nConnection: Upgrade\r\n",
    "two lines, reversed": b"Upgrade: foo\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
    "websocket": b"Upgrade: websocket\r\nConnection: Upgrade\r\n",
    "handshake": b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
}
TARGETS = ("POST /v1/nothing", "GET /healthz", "GET /v1/ws", "DELETE /v1/me", "POST /v1/chat/completions")
MALFORMED = {
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n",
    "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n",
    "identity": b"Transfer-Encoding: identity\r\nContent-Length: %d\r\n",
    "unknown coding": b"Transfer-Encoding: xchunked\r\nContent-Length: %d\r\n",
    "folded": b"X-Folded: a\r\n b\r\nContent-Length: %d\r\n",
    "space before colon": b"Content-Length : %d\r\n",
    "plus": b"Content-Length: +%d\r\n",
    "list of lengths": b"Content-Length: %d, %d\r\n",
    "hexadecimal": b"Content-Length: 0x%d\r\n",
    "header without a value": b"X-Empty:\r\nContent-Length: %d\r\n",
    "coding in tabs": b"Transfer-Encoding:\tchunked\t\r\n",
    "two codings": b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
    "line feed": b"X-Line: a\nContent-Length: %d\r\n",
    "carriage return": b"X-Line: a\rContent-Length: %d\r\n",
    "expect": b"Expect: 100-continue\r\nContent-Length: %d\r\n",
}


def by_length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def in_chunks(body: bytes) -> bytes:
    return b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def requests(*, host: str = "localhost") -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes: every way to end a message, each with a hidden request in its body."""
    for target in TARGETS:
        start = f"{target} HTTP/1.1\r\nHost: {host}\r\n".encode()
        for name, upgrade in UPGRADES.items():
            for hidden in (PADDING + HIDDEN, PADDING + UNFINISHED):
                whole = "whole" if hidden.endswith(HIDDEN) else "unfinished"
                yield f"{target}, {name}, length, {whole}", start + upgrade + by_length(hidden)
                yield f"{target}, {name}, chunked, {whole}", start + upgrade + in_chunks(hidden)
        for name, framing in MALFORMED.items():
            yield f"{target}, {name}", start + framing.replace(b"%d", b"%d" % len(HIDDEN)) + b"\r\n" + HIDDEN
        bad_trailer = b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n" + HIDDEN
        yield f"{target}, request as trailer", start + bad_trailer
    old = f"POST /v1/nothing HTTP/1.0\r\nHost: {host}\r\n".encode()
    yield "HTTP/1.0", old + UPGRADES["foo"] + by_length(HIDDEN)
    yield "CONNECT", b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n" + by_length(HIDDEN)


def statuses(answers: bytes) -> list[int]:
    """Return the status of each final answer."""
    return [int(found) for found in re.findall(rb"HTTP/1\.1 ([2-5]\d\d) ", answers)]
