"""Sound in amounts and shapes that no speaker makes."""

from __future__ import annotations

import json
import random

from tests.attack.attack import TargetKind, attack
from tests.attack.client import Attacker, Socket
from tests.chaos.minimal_websocket import BINARY, framed

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


@attack(sockets=4, ground=TargetKind.SPEECH)
async def noise_floods(attacker: Attacker) -> None:
    """Sends noise 25 times as fast as it would be heard."""
    one = await _begin(attacker)
    await attacker.flood(one, _sound, per_s=100)


@attack(sockets=4, ground=TargetKind.SPEECH)
async def endless_speech(attacker: Attacker) -> None:
    """Has half a minute of noise recognized again and again."""
    one = await _begin(attacker, turn_detection={"type": "none"})
    commit = _request("audio.commit", attacker)
    await attacker.flood(
        one, lambda number: _sound(number) + (commit if number % 120 == 119 else b""), per_s=100
    )


@attack(sockets=4, ground=TargetKind.SPEECH)
async def sound_starts(attacker: Attacker) -> None:
    """Starts and stops speaking 30 times a second."""
    one = await _begin(attacker)
    await attacker.flood(
        one, lambda _: _request("audio.stop", attacker) + _request("audio.start", attacker), per_s=30
    )


@attack(sockets=4, ground=TargetKind.SPEECH)
async def commits_and_clears(attacker: Attacker) -> None:
    """Commits and clears an empty audio buffer."""
    one = await _begin(attacker)
    both = _request("audio.commit", attacker) + _request("audio.clear", attacker)
    await attacker.flood(one, lambda number: _sound(number) + both, per_s=30)


@attack(sockets=4, ground=TargetKind.SPEECH)
async def odd_sound(attacker: Attacker) -> None:
    """Sends 16 invalid audio frames, fewer than end a connection, and reconnects."""
    one = await _begin(attacker)
    for number in range(16):
        await one.write(framed(ODD[number % len(ODD)], opcode=BINARY))
    for _ in range(16):
        answer = await one.get()
        attacker.count(f"{answer['type']} {answer.get('code', '')}".strip())
