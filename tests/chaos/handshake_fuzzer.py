"""Makes requests that no honest client sends, and some that one would. Pure: the caller passes the random numbers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

HEADERS: tuple[tuple[str, str], ...] = (
    ("Host", "localhost"),
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Protocol", "midstream.v1"),
    ("Origin", "http://localhost"),
)
ODD_VALUES = (
    "", " ", "\t", "0", "-1", "x" * 9_000, "\x00", "\x7f", "é", "\xff\xfe", "a, b,, c", "null", "http://[", "13, 13",
    "=" * 24, "midstream.v1, midstream.v1", "permessage-deflate; server_max_window_bits=99", "Bearer", "Bearer \x01",
    "Basic Og==", "\r\n folded", "chunked", "100-continue", "127.0.0.1:99999",
)  # fmt: skip
ODD_NAMES = (
    "Content-Length", "Transfer-Encoding", "Expect", "Sec-WebSocket-Extensions", "Authorization", "X-Forwarded-For",
    "Cookie", "Sec WebSocket", "", ":", "Ünicode", "Upgrade",
)  # fmt: skip
METHODS = ("GET", "get", "POST", "HEAD", "CONNECT", "OPTIONS", "PRI", "", "GET GET", "\x16\x03\x01")
TARGETS = (
    "/v1/ws", "/", "/v1/ws?a=%00", "/v1/ws/../ws", "//v1//ws", "*", "http://else.example/v1/ws", "/static/%2e%2e/a",
    "/" + "a" * 9_000, "/\x00", "/é", "/%ff", "/v1/ws#x", "", "/healthz", "/readyz",
)  # fmt: skip
VERSIONS = ("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9", "http/1.1", "", "HTTP/1.1 ")


def odd_handshake(draw: Random) -> bytes:
    """Return the bytes of a request, complete or not."""
    return draw.choices(KINDS, WEIGHTS)[0](draw)


def _request(
    headers: list[tuple[str, str]], *, method: str = "GET", target: str = "/v1/ws", version: str = "HTTP/1.1"
) -> bytes:
    lines = [f"{method} {target} {version}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass")


def _honest(_: Random) -> bytes:
    return _request(list(HEADERS))


def _odd_line(draw: Random) -> bytes:
    method, version = draw.choice(("GET", *METHODS)), draw.choice(("HTTP/1.1", *VERSIONS))
    return _request(list(HEADERS), method=method, target=draw.choice(TARGETS), version=version)


def _odd_headers(draw: Random) -> bytes:
    headers = list(HEADERS)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(headers))
        match draw.randrange(4):
            case 0 if len(headers) > 1:
                del headers[place]
            case 1:
                headers.append(headers[place])
            case 2:
                headers[place] = (headers[place][0], draw.choice(ODD_VALUES))
            case _:
                headers.insert(place, (draw.choice(ODD_NAMES), draw.choice(ODD_VALUES)))
    return _request(headers)


def _many_headers(draw: Random) -> bytes:
    more = [(f"X-{number}", "y" * draw.randrange(200)) for number in range(draw.choice((200, 2_000)))]
    return _request([*HEADERS, *more])


def _cut(draw: Random) -> bytes:
    whole = _request(list(HEADERS))
    return whole[: draw.randrange(1, len(whole))]


def _changed(draw: Random) -> bytes:
    whole = bytearray(_request(list(HEADERS)))
    for _ in range(draw.randint(1, 6)):
        whole[draw.randrange(len(whole))] = draw.randrange(256)
    return bytes(whole)


def _noise(draw: Random) -> bytes:
    return draw.randbytes(draw.randrange(1, 400))


def _more_behind(draw: Random) -> bytes:
    """Return a complete handshake with data directly after it, before it is answered."""
    return _request(list(HEADERS)) + draw.randbytes(draw.randrange(1, 50))


KINDS: tuple[Callable[[Random], bytes], ...] = (
    _honest,
    _odd_line,
    _odd_headers,
    _many_headers,
    _cut,
    _changed,
    _noise,
    _more_behind,
)
WEIGHTS = (5, 25, 35, 2, 10, 15, 5, 5)
