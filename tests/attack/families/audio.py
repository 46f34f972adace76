"""Sound in amounts and shapes that no speaker makes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial

from tests.attack.attack import Family, TargetKind
from tests.attack.client import Attacker, Socket
from tests.chaos.minimal_websocket import BINARY, framed

family = Family(sockets=4, ground=TargetKind.SPEECH)
RATE = 8_000
PART = RATE // 4
"""Bytes of a quarter of a second of µ-law."""
_chance = random.Random(0)
NOISE = [_chance.randbytes(PART) for _ in range(64)]
ODD = (b"", b"\1", bytes(8) + NOISE[0], b"\xff" * 8)
"""No head, a piece of one, kinds that are not known."""


def _request(kind: str, attacker: Attacker, **more: object) -> bytes:
    return framed(json.dumps({"type": kind, "conversation_id": _conversation_id(attacker)} | more).encode())


def _conversation_id(attacker: Attacker) -> str:
    return f"sound-{attacker.place}"


def _sound(number: int) -> bytes:
    head = b"\1\0" + (1).to_bytes(2, "big") + number.to_bytes(4, "big")
    return framed(head + NOISE[number % len(NOISE)], opcode=BINARY)


async def _begin(attacker: Attacker, **more: object) -> Socket:
    """A socket that is listened to; where there is no place it waits for nothing. Raises Refused, Dropped."""
    one = await attacker.send_hello(features=("audio",))
    await one.write(_request("audio.start", attacker, input={"format": "mulaw", "rate": RATE}, **more))
    answer = await one.get()
    attacker.count(f"{answer['type']} {answer.get('code', '')}".strip())
    if answer["type"] != "audio.started":
        await attacker.listen(one)
    return one


def _flood(
    name: str, what: str, make: Callable[[Attacker, int], bytes], *, per_s: float, **more: object
) -> None:
    async def run(attacker: Attacker) -> None:
        await attacker.flood(await _begin(attacker, **more), partial(make, attacker), per_s=per_s)

    family.add(name, what, run)


def _endless(attacker: Attacker, number: int) -> bytes:
    return _sound(number) + (_request("audio.commit", attacker) if number % 120 == 119 else b"")


_flood(
    "noise-floods", "Sends noise 25 times as fast as it would be heard.", lambda _, number: _sound(number), per_s=100
)  # fmt: skip
_flood(
    "endless-speech", "Has half a minute of noise recognized again and again.",
    _endless, per_s=100, turn_detection={"type": "none"},
)  # fmt: skip
_flood(
    "sound-starts", "Starts and stops speaking 30 times a second.",
    lambda me, _: _request("audio.stop", me) + _request("audio.start", me), per_s=30,
)  # fmt: skip
_flood(
    "commits-and-clears", "Commits and clears an empty audio buffer.",
    lambda me, number: _sound(number) + _request("audio.commit", me) + _request("audio.clear", me), per_s=30,
)  # fmt: skip


@family.attack()
async def odd_sound(attacker: Attacker) -> None:
    """Sends 16 invalid audio frames, fewer than end a connection, and reconnects."""
    one = await _begin(attacker)
    for number in range(16):
        await one.write(framed(ODD[number % len(ODD)], opcode=BINARY))
    for _ in range(16):
        await attacker.answered(one)
