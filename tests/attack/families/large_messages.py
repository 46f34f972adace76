"""Large messages of Realtime sessions: items with images that never end, messages that are never whole, and those that are refused."""

from __future__ import annotations

import json
from base64 import b64encode
from functools import cache
from random import Random

from tests.attack.attack import KB, MB, SMALL_BUFFER, Cost, Family, beats
from tests.attack.client import Attacker
from tests.attack.families.frames import CONTINUATION
from tests.attack.families.sessions import REALTIME, session
from tests.attack.families.stored_state import png
from tests.chaos.minimal_websocket import PING, framed

family = Family(sockets=8, cost=Cost.BODY)
CREATE = "conversation.item.create"
DATA = "data:image/png;base64,"
LARGEST = 720 * KB
"""Bytes of an image whose item is just as large as one may be."""
BEGUN = b'{"type":"%b","item":{"content":[{"type":"input_image","image_url":"' % CREATE.encode()
HEAD = framed(b" " * MB)[:-MB]
"""The head of a frame of 1 MiB."""
FIRST = framed(BEGUN + b"A" * 100 * KB, first_bits=0)
"""The first fragment of a large message."""
WHOLE = framed(b'{"type":"conversation.item.retrieve","item_id":"none"}')
"""Behind a whole message fragments and pings no longer count as those before the first."""
MORE = framed(b"A", opcode=CONTINUATION, first_bits=0) + framed(b"p", opcode=PING)


def _item(*parts: dict[str, str]) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": parts}


def _image(url: str) -> dict[str, str]:
    return {"type": "input_image", "image_url": url}


@cache
def _halves() -> tuple[bytes, bytes]:
    """The largest item, without eight letters in the middle of its image's base64."""
    url = DATA + b64encode(png(Random(0).randbytes(LARGEST))).decode()
    whole = json.dumps({"type": CREATE, "item": _item(_image(url))}).encode()
    return whole[: len(whole) // 2], whole[len(whole) // 2 + 8 :]


@cache
def _refused() -> tuple[bytes, ...]:
    """Messages of a megabyte, each refused for another reason: those that are JSON, then those that are not."""
    small = DATA + b64encode(png(b"points")).decode()
    begin, end = png(b"points")[:-12], png(b"points")[-12:]
    chunky = DATA + b64encode(begin + (bytes(4) + b"teXt" + bytes(4)) * 9_000 + end).decode()
    many = ["x" * 15] * 49_000
    odd: tuple[dict[str, object], ...] = (
        {"type": "session.update", "session": {"type": "realtime", "instructions": "\u00e9" * 170_000}},
        {
            "type": CREATE,
            "item": _item(_image(small), *[{"text": "\\u0000" + "x" * 72}] * 9_000, {"type": "odd"}),
        },
        {"type": CREATE, "item": _item(*[_image(small)] * 6_000)},
        {"type": CREATE, "item": _item(*[_image(chunky)] * 7, {"type": "odd"})},
        {"type": CREATE, "item": _item(_image(DATA + "A" * 1_000_000))},
        {"type": CREATE, "item": _item(_image(small)), "unknown": [0] * 300_000},
        {"type": CREATE, "item": _item(_image("\x00" * 170_000))},
        {"type": CREATE, "item": _item(_image("\ud800")), "unknown": many},
    )
    written = [json.dumps(one).encode() for one in odd]
    broken = [written[1][:-1], b"[" * 1_000_000, b'"' + b"\\\\" * 500_000, b"{},".join([b" "] * 250_000)]
    sizes = [len(one) for one in (*written, *broken)]
    assert all(800 * KB < size <= MB for size in sizes), sizes
    return tuple(framed(one) for one in (*written, *broken))


@family.attack(warm=_halves)
async def large_items(attacker: Attacker) -> None:
    """Adds items of 1 MiB with images as fast as they are taken."""
    begin, end = _halves()
    one = await session(attacker, REALTIME, receive_buffer=SMALL_BUFFER)
    async for number in beats(10):
        letters = number + 1_000 * (attacker.place + 100 * (attacker.life + 100 * attacker.number))
        await one.write(framed(b"%b%08d%b" % (begin, letters % 10**8, end)))


@family.attack(sockets=18)
async def unended_messages(attacker: Attacker) -> None:
    """Begins Realtime messages of 1 MiB and never ends them."""
    one = await session(attacker, REALTIME)
    await one.write(WHOLE)
    match attacker.place % 3:
        case 0:
            await one.write(HEAD)
            await attacker.listen(one)
        case 1:
            await one.write(HEAD + BEGUN + b"A" * 100 * KB)
            await attacker.flood(one, lambda _: b"A", per_s=20)
        case _:
            await one.write(FIRST)
            await attacker.flood(one, lambda _: MORE, per_s=2)


@family.attack(warm=_refused)
async def refused_messages(attacker: Attacker) -> None:
    """Sends Realtime messages of 1 MiB that are invalid."""
    one = await session(attacker, REALTIME)
    await one.write(_refused()[(attacker.number + attacker.place + attacker.life) % len(_refused())])
    attacker.count(str((await one.get())["type"]))
