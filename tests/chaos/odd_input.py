"""Makes frames and requests that no honest client sends, and some that one would. Pure: the caller passes the random numbers.

What honest clients send is the material: the examples of the protocol, and the transcripts of other endpoints.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import msgspec

from specs.frames import REQUEST_EXAMPLES
from tests.chaos.minimal_websocket import BINARY, CLOSE, HANDSHAKE, PING, PONG, TEXT, framed
from tests.transcripts import transcript

CONTINUATION = 0
CONVERSATIONS = tuple(f"c{number}" for number in range(4))
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 2**200, 1e308, -0.0, "", "\0", "\ud800", "a" * 129, "x" * 5_000, "../..", "ms:{*}",
    "🏳️‍🌈" * 40, "\u202e\u0000\u2028", [], {}, [[]], {"type": "send"}, [None] * 50, {"": ""},
)  # fmt: skip
Frames = Sequence[dict[str, Any]]


class WebSocketEndpoint(msgspec.Struct, frozen=True):
    """A WebSocket without a hello. `folder`: that of its transcripts."""

    part: str
    path: str
    folder: str

    @property
    def honest(self) -> Frames:
        """Messages whose fields may each become odd."""
        return _sent(self.folder)


REALTIME = WebSocketEndpoint("fuzz-realtime", "/v1/realtime?client_id=fuzz", "realtime")
RESPONSES = WebSocketEndpoint("fuzz-responses", "/v1/responses", "responses-websocket")
WEBSOCKETS = (REALTIME, RESPONSES)


@cache
def _sent(folder: str) -> Frames:
    files = sorted((transcript.FOLDER / folder).glob("*.yaml"))
    acts = [step.act for file in files for step in transcript.read(file).steps]
    return [act["frame"] for act in acts if "send" in act and "frame" in act]


@cache
def native() -> Frames:
    """Return what clients of the native WebSocket send."""
    return list(REQUEST_EXAMPLES.values())


def odd_frame(draw: Random, honest: Frames | None = None) -> bytes:
    """Return the bytes of one frame, or of the few that form one message. `honest`: the messages of an endpoint's clients."""
    frame = dict(draw.choice(honest or native()))
    (make,) = draw.choices(list(FRAME_KINDS), list(FRAME_KINDS.values()))
    return make(draw, frame)


def _honest(draw: Random, frame: dict[str, Any]) -> bytes:
    if "conversation_id" in frame:
        frame["conversation_id"] = draw.choice(CONVERSATIONS)
    if "client_msg_id" in frame:
        frame["client_msg_id"] = f"{draw.getrandbits(32):x}"
    return framed(json.dumps(frame).encode())


def _wrong_field(draw: Random, frame: dict[str, Any]) -> bytes:
    """Return an honest frame with a missing, odd or unknown field."""
    place = draw.choice([*frame, "params", "unknown"])
    if draw.random() < 0.3:
        frame.pop(place, None)
    else:
        frame[place] = draw.choice(ODD_VALUES)
    return framed(json.dumps(frame).encode())


def _broken_json(draw: Random, frame: dict[str, Any]) -> bytes:
    return framed(changed(draw, json.dumps(frame).encode()))


def _deep(draw: Random, _: dict[str, Any]) -> bytes:
    depth = draw.choice((10, 1_000, 20_000))
    opened, shut = draw.choice((("[", "]"), ('{"a":', "}")))
    return framed(f'{{"type":"ping","t":{opened * depth}1{shut * depth}}}'.encode()[:60_000])


def _noise(draw: Random, _: dict[str, Any]) -> bytes:
    return framed(draw.randbytes(draw.randrange(300)), opcode=draw.choice((TEXT, BINARY)))


def _fragments(draw: Random, frame: dict[str, Any]) -> bytes:
    text = json.dumps(frame).encode()
    cut = draw.randrange(len(text))
    between = framed(b"now", opcode=PING) if draw.random() < 0.5 else b""
    return framed(text[:cut], first_bits=0) + between + framed(text[cut:], opcode=CONTINUATION)


def _against_the_rules(draw: Random, _: dict[str, Any]) -> bytes:
    """Return frames that RFC 6455 forbids: they end the connection."""
    return draw.choice(
        (
            framed(b"{}", first_bits=0xC0),
            framed(b"{}", opcode=draw.randrange(3, 8)),
            framed(b"x" * 126, opcode=PING),
            framed(b"more", opcode=CONTINUATION),
            framed(b"\x03", opcode=CLOSE),
            framed((5).to_bytes(2, "big") + b"no such code", opcode=CLOSE),
            framed(b"x" * 70_000),
            bytes([0x81, 2]) + b"{}",
            bytes([0x81, 0xFF]) + b"\xff" * 8,
        )
    )


def _control(draw: Random, _: dict[str, Any]) -> bytes:
    return framed(draw.randbytes(draw.randrange(125)), opcode=draw.choice((PING, PONG)))


FRAME_KINDS: dict[Callable[[Random, dict[str, Any]], bytes], int] = {
    _honest: 20, _wrong_field: 30, _broken_json: 20, _deep: 3, _noise: 10, _fragments: 10, _control: 6, _against_the_rules: 1
}  # fmt: skip
"""Kinds of frames, with their weights."""


def changed(draw: Random, whole: bytes, words: Sequence[bytes] = ()) -> bytes:
    """Return bytes of which some are changed, cut out, doubled, or replaced by one of the words."""
    text = bytearray(whole)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.randrange(1, 30))
        match draw.randrange(5 if words else 4):
            case 0 if start < len(text):
                text[start] = draw.randrange(256)
            case 1:
                del text[start:end]
            case 2:
                text[start:start] = text[start:end]
            case 3:
                del text[start:]
            case _ if words:
                text[start:end] = draw.choice(words)
    return bytes(text)


ODD_LINES = (
    "get /v1/ws HTTP/1.1", "POST / HTTP/1.0", "PRI * HTTP/2.0", "GET http://else.example/v1/ws HTTP/9", "GET /v1/ws", "",
    "GET /static/%2e%2e/a HTTP/1.1", f"GET /{'a' * 9_000} HTTP/1.1", "GET /v1/ws?a=%00 http/1.1", "GET GET / HTTP/1.1",
    "Content-Length: -1", "Content-Length: 99999", "Transfer-Encoding: chunked", "Expect: 100-continue", "Upgrade: h2c",
    "Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99", "Sec-WebSocket-Version: 13, 13", "Host:",
    "Sec-WebSocket-Protocol: midstream.v1, midstream.v1", "Authorization: Bearer \x01", "Authorization: Basic Og==",
    "X-Forwarded-For: 127.0.0.1:99999", "Origin: http://[", "Cookie: a, b,, c", "Sec WebSocket: x", ": x", "Ünicode: é",
    f"Sec-WebSocket-Key: {'=' * 24}", f"Cookie: {'x' * 9_000}", " folded", "X: \x00\x7f", "\x16\x03\x01",
    "\r\n".join(f"X-{number}: {'y' * 100}" for number in range(2_000)),
)  # fmt: skip


def odd_handshake(draw: Random) -> bytes:
    """Return the bytes of a request in which some are changed, or replaced by odd lines, and maybe with more behind it."""
    honest = HANDSHAKE.format(host="localhost", extra="Origin: http://localhost\r\n").encode()
    behind = draw.randbytes(draw.randrange(1, 50)) if draw.random() < 0.1 else b""
    return changed(draw, honest, [f"\r\n{line}\r\n".encode() for line in ODD_LINES]) + behind
