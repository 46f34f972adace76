"""Nothing at all; handshakes, sockets and frames in numbers and shapes that no client needs."""

from __future__ import annotations

import asyncio

from tests.attack.attack import Family, TargetKind
from tests.attack.client import KB, Attacker, Socket
from tests.attack.requests import frame
from tests.chaos.minimal_websocket import BINARY, HANDSHAKE, PING, framed

family = Family()
CONTINUATION = 0
EMPTY_FRAGMENTS = framed(b"", opcode=CONTINUATION, first_bits=0) * 10_000
"""Empty fragments, 60 KB."""
PINGS = framed(b"p" * 125, opcode=PING) * 500
"""Pings, 66 KB."""
DEEP = framed(b'{"type":"ping","t":' + b"[" * 20_000 + b"]" * 20_000 + b"}")
WIDE = frame("ping", metadata={f"k{n}": n for n in range(4_500)})
"""A valid frame: unknown fields are ignored."""
WHOLE_HANDSHAKE = HANDSHAKE.format(host="127.0.0.1", extra="").encode()
HEADERS = "".join(f"X-{n}: {n}\r\n" for n in range(5_000))[: 60 * KB].rpartition("\r\n")[0] + "\r\n"
LONG_HEAD = HANDSHAKE.format(host="127.0.0.1", extra=HEADERS).encode()
LONG_FRAME = framed(b'{"type":"ping","t":"' + b"x" * 60_000 + b'"}')


@family.attack()
async def nobody(_: Attacker) -> None:
    """Does nothing, so that the table shows the noise."""
    await asyncio.Event().wait()


family.add(
    "nobody-at-the-model", "Does nothing on the server that has the demo model.", nobody, ground=TargetKind.MODEL
)  # fmt: skip


async def _begun_message(attacker: Attacker) -> Socket:
    one = await attacker.handshake()
    await one.write(framed(b'{"type":"hello"', first_bits=0))
    return one


async def _hello_or_none(attacker: Attacker) -> Socket:
    return await (attacker.send_hello if attacker.place else attacker.handshake)(small=True)


family.flood(
    "empty-fragments", "Sends an endless message of empty fragments before `hello`.",
    [EMPTY_FRAGMENTS], per_s=30, opens=_begun_message,
)  # fmt: skip
family.unread(
    "unread-pongs", "Sends pings as fast as they are taken, and reads no pong.",
    [PINGS], per_s=200, opens=_hello_or_none, sockets=2,
)  # fmt: skip
family.unread(
    "echoed-pings", "Has 60 KB echoed by each ping, and reads no pong.", [frame("ping", t="t" * 60_000)], per_s=100
)  # fmt: skip
family.flood(
    "reads-and-pings", "Pings and asks for histories and lists, 500 frames a second.",
    [frame("ping"), frame("history"), frame("conversations"), frame("ping")], per_s=500, sockets=10,
)  # fmt: skip
family.odd(
    "bad-frames", "Sends 19 malformed frames, one fewer than ends a connection, and reconnects.",
    [framed(b"{")] * 19, sockets=5, expect="error",
)  # fmt: skip
family.flood(
    "binary-frames", "Sends binary frames of 60 KB.",
    [framed(b"b" * 60_000, opcode=BINARY)], per_s=50, sockets=2, expect="closed 1008",
)  # fmt: skip
family.flood(
    "deep-frames", "Sends frames with 20,000 levels of nesting.", [DEEP], per_s=50, sockets=4, expect="closed 1008"
)  # fmt: skip
family.flood(
    "wide-frames", "Sends pings with 60 KB of unknown fields.", [WIDE], per_s=50, sockets=4, expect="pong"
)  # fmt: skip


@family.attack(sockets=100)
async def silent_sockets(attacker: Attacker) -> None:
    """Connects and sends nothing."""
    await attacker.receive(await attacker.connect())


@family.attack(sockets=50)
async def trickled_heads(attacker: Attacker) -> None:
    """Sends a handshake's head a byte at a time."""
    await attacker.trickle(await attacker.connect(), WHOLE_HANDSHAKE[:-1], per_s=20)


@family.attack(sockets=100)
async def half_open(attacker: Attacker) -> None:
    """Completes the handshake and never sends `hello`."""
    await attacker.listen(await attacker.handshake())


family.visits("connect-storm", "Connects and leaves.", Attacker.connect, per_s=100, sockets=4)
family.visits("shake-storm", "Sends `hello` and leaves.", Attacker.send_hello, per_s=20, sockets=4)
family.visits(
    "long-heads", "Sends handshakes with 60 KiB of headers.", lambda me: me.ask(LONG_HEAD), per_s=10, sockets=4
)  # fmt: skip
family.flood(
    "trickled-frames", "Sends a frame of 60 KB a byte at a time.",
    lambda _, number: LONG_FRAME[number % len(LONG_FRAME) :][:1], per_s=200, sockets=10,
)  # fmt: skip
