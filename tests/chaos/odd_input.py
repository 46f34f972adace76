"""Makes frames and requests that no honest client sends, and some that one would. Pure: the caller passes the random numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from tests.chaos.minimal_websocket import CLOSE, PING, PONG, TEXT, framed

CONTINUATION, BINARY = 0, 2
CONVERSATIONS = tuple(f"c{number}" for number in range(4))
HONEST: tuple[dict[str, Any], ...] = (
    {"type": "send", "client_msg_id": "m", "content": "Say something.", "conversation_id": "c0"},
    {
        "type": "send",
        "client_msg_id": "n",
        "content": "Wait!",
        "on_busy": "interrupt",
        "params": {"top_k": 3},
    },
    {"type": "cancel", "conversation_id": "c0", "mode": "rollback", "seen_off": 3},
    {"type": "cancel", "turn_id": "turn_0", "ref": "r"},
    {"type": "resume", "conversation_id": "c1", "epoch": "e", "after_seq": 3},
    {"type": "history", "conversation_id": "c1", "limit": 5, "before": "m"},
    {"type": "regenerate", "message_id": "m", "client_msg_id": "g"},
    {"type": "continue", "message_id": "m", "client_msg_id": "o"},
    {"type": "edit", "message_id": "m", "content": "Other words.", "client_msg_id": "e"},
    {"type": "conversations", "limit": 3},
    {"type": "rename", "conversation_id": "c2", "title": "Trees"},
    {"type": "delete", "conversation_id": "c3"},
    {"type": "ack", "conversation_id": "c0", "seq": 1},
    {"type": "ping", "t": 1},
    {"type": "auth.refresh", "token": "none"},
    {"type": "hello"},
)
ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 2**200, 1e308, -0.0, "", "\0", "\ud800", "a" * 129, "x" * 5_000, "../..", "ms:{*}",
    "🏳️‍🌈" * 40, "\u202e\u0000\u2028", [], {}, [[]], {"type": "send"}, [None] * 50, {"": ""},
)  # fmt: skip


Honest = Sequence[dict[str, Any]]


def odd_frame(draw: Random, honest: Honest = HONEST) -> bytes:
    """Return the bytes of one frame, or of the few that form one message. `honest`: the messages of an endpoint's clients."""
    make = draw.choices(list(FRAME_KINDS), list(FRAME_KINDS.values()))[0]
    return make(draw, honest)


def _honest(draw: Random, honest: Honest = HONEST) -> bytes:
    frame = dict(draw.choice(honest))
    if "conversation_id" in frame:
        frame["conversation_id"] = draw.choice(CONVERSATIONS)
    if "client_msg_id" in frame:
        frame["client_msg_id"] = f"{draw.getrandbits(32):x}"
    return framed(json.dumps(frame).encode())


def _wrong_field(draw: Random, honest: Honest = HONEST) -> bytes:
    """Return an honest frame with a missing, odd or unknown field."""
    frame = dict(draw.choice(honest))
    place = draw.choice([*frame, "params", "unknown"])
    if draw.random() < 0.3:
        frame.pop(place, None)
    else:
        frame[place] = draw.choice(ODD_VALUES)
    return framed(json.dumps(frame).encode())


def _broken_json(draw: Random, honest: Honest = HONEST) -> bytes:
    """Return text with some bytes changed, cut off or doubled; it may no longer be UTF-8."""
    text = bytearray(json.dumps(draw.choice(honest)).encode())
    for _ in range(draw.randint(1, 4)):
        match draw.randrange(3):
            case 0:
                text[draw.randrange(len(text))] = draw.randrange(128)
            case 1:
                del text[draw.randrange(1, len(text) + 1) :]
            case _:
                text += text[: draw.randrange(1, len(text) + 1)]
    return framed(bytes(text))


def _deep(draw: Random, _: Honest = HONEST) -> bytes:
    depth = draw.choice((10, 1_000, 20_000))
    opened, shut = draw.choice((("[", "]"), ('{"a":', "}")))
    return framed(f'{{"type":"ping","t":{opened * depth}1{shut * depth}}}'.encode()[:60_000])


def _noise(draw: Random, _: Honest = HONEST) -> bytes:
    opcode = draw.choice((TEXT, BINARY))
    return framed(draw.randbytes(draw.randrange(300)), opcode=opcode)


def _fragments(draw: Random, honest: Honest = HONEST) -> bytes:
    text = json.dumps(draw.choice(honest)).encode()
    cut = draw.randrange(len(text))
    between = framed(b"now", opcode=PING) if draw.random() < 0.5 else b""
    return framed(text[:cut], first_bits=0) + between + framed(text[cut:], opcode=CONTINUATION)


def _against_the_rules(draw: Random, _: Honest = HONEST) -> bytes:
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


def _control(draw: Random, _: Honest = HONEST) -> bytes:
    return framed(draw.randbytes(draw.randrange(125)), opcode=draw.choice((PING, PONG)))


FRAME_KINDS: dict[Callable[[Random, Honest], bytes], int] = {
    _honest: 20, _wrong_field: 30, _broken_json: 20, _deep: 3, _noise: 10, _fragments: 10, _control: 6, _against_the_rules: 1
}  # fmt: skip
"""Kinds of frames, with their weights."""


# What honest clients send at the WebSockets beside the native one: the material of the odd frames.
MODEL = "midstream-demo"
_INPUT = [{"role": "user", "content": "Say something."}]
_PART = {"type": "input_text", "text": "Say something."}
_TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}}
_ITEM = {"type": "message", "role": "user", "content": [_PART]}
_UI = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Say something."}]}
_OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "1"}
_AUDIO = {
    "input": {"transcription": {"model": "m"}, "language": "en", "noise_reduction": None},
    "output": {"language": "zh", "voice": None},
}
_GERMAN = {"output": {"language": "de"}}
_FORMAT = {"type": "json_schema", "name": "n", "schema": {}}
_CALLED = {
    "type": "dynamic-tool", "toolName": "look", "toolCallId": "c", "state": "output-available", "input": {}, "output": 1
}  # fmt: skip
_CHAT = {"requestId": "r1", "id": "c0", "trigger": "submit-message", "headers": {}, "body": {}}


class WebSocketEndpoint(msgspec.Struct, frozen=True):
    """A WebSocket without a hello. `honest`: messages whose fields may each become odd."""

    part: str
    path: str
    honest: tuple[dict[str, Any], ...]


REALTIME = WebSocketEndpoint(
    "fuzz-realtime",
    "/v1/realtime?client_id=fuzz",
    (
        {"type": "session.update", "session": {"type": "realtime", "instructions": "Be kind."}},
        {"type": "session.update", "session": {"type": "realtime", "tools": [_TOOL], "tool_choice": "auto"}},
        {"type": "conversation.item.create", "item": _ITEM, "event_id": "e1", "previous_item_id": "root"},
        {"type": "conversation.item.create", "item": _OUTPUT},
        {"type": "conversation.item.retrieve", "item_id": "i"},
        {"type": "conversation.item.delete", "item_id": "i"},
        {"type": "conversation.item.truncate", "item_id": "i", "content_index": 0, "audio_end_ms": 3},
        {"type": "response.create", "response": {"instructions": "Be brief.", "max_output_tokens": 3}},
        {"type": "response.create", "response": {"conversation": "none", "input": [_ITEM]}},
        {"type": "response.cancel", "response_id": "resp_0"},
        {"type": "input_audio_buffer.append", "audio": "AAAA"},
        {"type": "input_audio_buffer.commit"},
        {"type": "input_audio_buffer.clear"},
    ),
)
TRANSLATIONS = WebSocketEndpoint(
    "fuzz-translations",
    "/v1/realtime/translations?client_id=fuzz",
    (
        {"type": "session.update", "session": {"audio": _AUDIO, "publish_policy": "wait", "wait_words": 3}},
        {"type": "session.update", "session": {"audio": _GERMAN, "publish_policy": "segment"}},
        {"type": "session.input_text_buffer.append", "text": "Say something. ", "event_id": "e1"},
        {"type": "session.input_text_buffer.append", "text": "\n"},
        {"type": "session.input_audio_buffer.append", "audio": "AAAA"},
        {"type": "session.close"},
    ),
)
RESPONSES = WebSocketEndpoint(
    "fuzz-responses",
    "/v1/responses",
    (
        {"type": "response.create", "model": MODEL, "input": "Say something.", "stream_id": "s1"},
        {"type": "response.create", "model": MODEL, "input": _INPUT, "store": False, "tools": [_TOOL]},
        {
            "type": "response.create",
            "input": _INPUT,
            "previous_response_id": "resp_0",
            "metadata": {"a": "b"},
        },
        {"type": "response.create", "input": _INPUT, "conversation": {"id": "c0"}, "truncation": "auto"},
        {
            "type": "response.create",
            "input": _INPUT,
            "text": {"format": _FORMAT},
            "reasoning": {"effort": "low"},
        },
        {"type": "response.create", "input": [{"type": "item_reference", "id": "msg_0.c_0"}]},
        {"type": "midstream:response.cancel", "response_id": "resp_0", "stream_id": "s1"},
        {"type": "response.cancel"},
    ),
)
AI_SDK = WebSocketEndpoint(
    "fuzz-ai-sdk",
    "/v1/ai-sdk/chat?client_id=fuzz",
    (
        {"type": "send", "messages": [_UI], **_CHAT},
        {"type": "send", "messages": [_UI], **_CHAT, "trigger": "regenerate-message", "messageId": "m2"},
        {"type": "send", "messages": [_UI, {"id": "m2", "role": "assistant", "parts": [_CALLED]}], **_CHAT},
        {"type": "resume", "requestId": "r1", "id": "c0"},
        {"type": "abort", "requestId": "r1"},
    ),
)
WEBSOCKETS = (REALTIME, TRANSLATIONS, RESPONSES, AI_SDK)

HEADERS: tuple[tuple[str, str], ...] = (
    ("Host", "localhost"),
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Protocol", "midstream.v1"),
    ("Origin", "http://localhost"),
)
ODD_HEADER_VALUES = (
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
    make = draw.choices(list(HANDSHAKE_KINDS), list(HANDSHAKE_KINDS.values()))[0]
    return make(draw)


def _request(
    headers: list[tuple[str, str]], *, method: str = "GET", target: str = "/v1/ws", version: str = "HTTP/1.1"
) -> bytes:
    lines = [f"{method} {target} {version}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass")


def _honest_request(_: Random) -> bytes:
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
                headers[place] = (headers[place][0], draw.choice(ODD_HEADER_VALUES))
            case _:
                headers.insert(place, (draw.choice(ODD_NAMES), draw.choice(ODD_HEADER_VALUES)))
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


def _noisy_request(draw: Random) -> bytes:
    return draw.randbytes(draw.randrange(1, 400))


def _more_behind(draw: Random) -> bytes:
    """Return a complete handshake with data directly after it, before it is answered."""
    return _request(list(HEADERS)) + draw.randbytes(draw.randrange(1, 50))


HANDSHAKE_KINDS: dict[Callable[[Random], bytes], int] = {
    _honest_request: 5, _odd_line: 25, _odd_headers: 35, _many_headers: 2, _cut: 10, _changed: 15, _noisy_request: 5,
    _more_behind: 5,
}  # fmt: skip
"""Kinds of requests, with their weights."""
