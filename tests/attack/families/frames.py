"""WebSocket frames in numbers and shapes that no client needs."""

from __future__ import annotations

import json

from tests.attack.attack import SMALL_BUFFER, Family, beats
from tests.attack.client import Attacker
from tests.chaos.minimal_websocket import PING, TEXT, framed

family = Family()
CONTINUATION = 0
FIRST_FRAGMENT = framed(b'{"type":"hello"', opcode=TEXT, first_bits=0)
EMPTY_FRAGMENTS = framed(b"", opcode=CONTINUATION, first_bits=0) * 10_000
"""Empty fragments, 60 KB."""
PINGS = framed(b"p" * 125, opcode=PING) * 500
"""Pings, 66 KB."""
LONG_T = framed(json.dumps({"type": "ping", "t": "t" * 60_000}).encode())
BYTES = framed(b"b" * 60_000, opcode=2)
DEEP = framed(b'{"type":"ping","t":' + b"[" * 20_000 + b"]" * 20_000 + b"}")
WIDE = framed(json.dumps({"type": "ping", "metadata": {f"k{n}": n for n in range(4_500)}}).encode())
"""A valid frame: unknown fields are ignored."""
READS = tuple(
    framed(json.dumps(frame).encode())
    for frame in ({"type": "ping"}, {"type": "history"}, {"type": "conversations"}, {"type": "ping"})
)


@family.attack()
async def empty_fragments(attacker: Attacker) -> None:
    """Sends an endless message of empty fragments before `hello`."""
    one = await attacker.handshake()
    await one.write(FIRST_FRAGMENT)
    await attacker.flood(one, lambda _: EMPTY_FRAGMENTS, per_s=30)


@family.attack(sockets=2)
async def unread_pongs(attacker: Attacker) -> None:
    """Sends pings as fast as they are taken, and reads no pong."""
    open_one = attacker.send_hello if attacker.place else attacker.handshake
    one = await open_one(receive_buffer=SMALL_BUFFER)
    async for _ in beats(200):
        await one.write(PINGS)


@family.attack()
async def echoed_pings(attacker: Attacker) -> None:
    """Has 60 KB echoed by each ping, and reads no pong."""
    one = await attacker.send_hello(receive_buffer=SMALL_BUFFER)
    async for _ in beats(100):
        await one.write(LONG_T)


family.flood(
    "reads-and-pings", "Pings and asks for histories and lists, 500 frames a second.",
    lambda _, number: READS[number % len(READS)], per_s=500, sockets=10,
)  # fmt: skip


@family.attack(sockets=5)
async def bad_frames(attacker: Attacker) -> None:
    """Sends 19 malformed frames, one fewer than ends a connection, and reconnects."""
    one = await attacker.send_hello()
    await one.write(framed(b"{") * 19)
    for _ in range(19):
        attacker.count((await one.get())["type"])


for _name, _what, _frame, _sockets in (
    ("binary-frames", "Sends binary frames of 60 KB.", BYTES, 2),
    ("deep-frames", "Sends frames with 20,000 levels of nesting.", DEEP, 4),
    ("wide-frames", "Sends pings with 60 KB of unknown fields.", WIDE, 4),
):
    family.flood(_name, _what, lambda *_, frame=_frame: frame, per_s=50, sockets=_sockets)
