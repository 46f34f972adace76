"""Makes frames that no honest client sends, and some that one would. Pure: the caller passes the random numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

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
    return draw.choices(KINDS, WEIGHTS)[0](draw, honest)


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


KINDS: tuple[Callable[[Random, Honest], bytes], ...] = (
    _honest,
    _wrong_field,
    _broken_json,
    _deep,
    _noise,
    _fragments,
    _control,
    _against_the_rules,
)
WEIGHTS = (20, 30, 20, 3, 10, 10, 6, 1)
