"""WebSocket frames in numbers and shapes that no client needs."""

from __future__ import annotations

import asyncio
import json

from tests.attack.attack import Attack
from tests.attack.client import Attacker, beats
from tests.chaos.minimal_websocket import PING, TEXT, framed

CONTINUATION = 0
FIRST_FRAGMENT = framed(b'{"type":"hello"', opcode=TEXT, first_bits=0)
EMPTY_FRAGMENTS = framed(b"", opcode=CONTINUATION, first_bits=0) * 10_000
"""Empty fragments, 60 KB."""
PINGS = framed(b"p" * 125, opcode=PING) * 500
"""Pings, 66 KB."""
SMALL_BUFFER = 8 * 1024
LONG_T = framed(json.dumps({"type": "ping", "t": "t" * 60_000}).encode())
DEEP = framed(b'{"type":"ping","t":' + b"[" * 20_000 + b"]" * 20_000 + b"}")
WIDE = framed(json.dumps({"type": "ping", "metadata": {f"k{n}": n for n in range(4_500)}}).encode())
"""A valid frame: unknown fields are ignored."""
READS = tuple(
    framed(json.dumps(frame).encode())
    for frame in ({"type": "ping"}, {"type": "history"}, {"type": "conversations"}, {"type": "ping"})
)


async def empty_fragments(attacker: Attacker) -> None:
    """Says no hello; begins a text message and goes on with empty fragments, 60 KB of them 30 times a second."""
    one = await attacker.handshake()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(attacker.listen(one))
        await one.write(FIRST_FRAGMENT)
        async for _ in beats(30):
            await one.write(EMPTY_FRAGMENTS)


async def unread_pongs(attacker: Attacker) -> None:
    """Sends pings of 125 bytes as fast as they are taken, and reads no pong; one socket before hello, one behind it."""
    open_one = attacker.send_hello if attacker.place else attacker.handshake
    one = await open_one(receive_buffer=SMALL_BUFFER)
    async for _ in beats(200):
        await one.write(PINGS)


async def echoed_pings(attacker: Attacker) -> None:
    """Sends the protocol's ping with 60 KB to carry back, 100 a second, and reads no pong."""
    one = await attacker.send_hello(receive_buffer=SMALL_BUFFER)
    async for _ in beats(100):
        await one.write(LONG_T)


async def reads_and_pings(attacker: Attacker) -> None:
    """Pings, and asks for a history and the list of conversations, 500 frames a second, and reads all answers."""
    one = await attacker.send_hello()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(attacker.listen(one))
        async for number in beats(500):
            await one.write(READS[number % len(READS)])


async def bad_frames(attacker: Attacker) -> None:
    """Sends 19 frames that are no JSON, one fewer than ends a connection, and comes back for the next 19."""
    one = await attacker.send_hello()
    await one.write(framed(b"{") * 19)
    for _ in range(19):
        attacker.count((await one.get())["type"])


async def binary_frames(attacker: Attacker) -> None:
    """Sends binary frames of 60 KB, 50 a second."""
    one = await attacker.send_hello()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(attacker.listen(one))
        async for _ in beats(50):
            await one.send(b"b" * 60_000, opcode=2)


async def deep_frames(attacker: Attacker) -> None:
    """Sends frames with 20,000 levels of nesting, 50 a second."""
    one = await attacker.send_hello()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(attacker.listen(one))
        async for _ in beats(50):
            await one.write(DEEP)


async def wide_frames(attacker: Attacker) -> None:
    """Sends pings with 60 KB of unknown fields, 50 a second."""
    one = await attacker.send_hello()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(attacker.listen(one))
        async for _ in beats(50):
            await one.write(WIDE)


ATTACKS = (
    Attack(run=empty_fragments),
    Attack(run=unread_pongs, sockets=2),
    Attack(run=echoed_pings),
    Attack(run=reads_and_pings, sockets=10),
    Attack(run=bad_frames, sockets=5),
    Attack(run=binary_frames, sockets=2),
    Attack(run=deep_frames, sockets=4),
    Attack(run=wide_frames, sockets=4),
)
