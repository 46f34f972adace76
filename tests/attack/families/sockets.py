"""Sockets that never get as far as a conversation."""

from __future__ import annotations

from tests.attack.attack import Family, beats
from tests.attack.client import Attacker
from tests.chaos.minimal_websocket import HANDSHAKE, framed

family = Family()
HOST = "127.0.0.1"
WHOLE_HANDSHAKE = HANDSHAKE.format(host=HOST, extra="").encode()
LONG_FRAME = framed(b'{"type":"ping","t":"' + b"x" * 60_000 + b'"}')
LONG_HEAD = HANDSHAKE.format(
    host=HOST,
    extra="".join(f"X-{n}: {n}\r\n" for n in range(5_000))[: 60 * 1024].rpartition("\r\n")[0] + "\r\n",
).encode()


@family.attack(sockets=100)
async def silent_sockets(attacker: Attacker) -> None:
    """Connects and sends nothing."""
    await attacker.receive(await attacker.connect())


@family.attack(sockets=50)
async def trickled_heads(attacker: Attacker) -> None:
    """Sends a handshake's head a byte at a time."""
    one = await attacker.connect()
    async for number in beats(20):
        if number >= len(WHOLE_HANDSHAKE) - 1:
            break
        await one.write(WHOLE_HANDSHAKE[number : number + 1])
    await attacker.receive(one)


@family.attack(sockets=100)
async def half_open(attacker: Attacker) -> None:
    """Completes the handshake and never sends `hello`."""
    await attacker.listen(await attacker.handshake())


@family.attack(sockets=4)
async def connect_storm(attacker: Attacker) -> None:
    """Connects and leaves."""
    async for _ in beats(100):
        await attacker.connect()
        attacker.close()


@family.attack(sockets=4)
async def shake_storm(attacker: Attacker) -> None:
    """Sends `hello` and leaves."""
    async for _ in beats(20):
        await attacker.send_hello()
        attacker.close()


@family.attack(sockets=4)
async def long_heads(attacker: Attacker) -> None:
    """Sends handshakes with 60 KiB of headers."""
    async for _ in beats(10):
        await attacker.ask(await attacker.connect(), LONG_HEAD)
        attacker.close()


family.flood(
    "trickled-frames", "Sends a frame of 60 KB a byte at a time.",
    lambda _, number: LONG_FRAME[number % len(LONG_FRAME) :][:1], per_s=200, sockets=10,
)  # fmt: skip
