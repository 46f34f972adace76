"""Realtime sessions, with messages of any size; live translations; and sound that no speaker makes."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from functools import cache
from random import Random
from typing import Any

from tests.attack.attack import Cost, Family, TargetKind
from tests.attack.client import KB, MB, Attacker, Socket
from tests.attack.requests import frame, png
from tests.chaos.minimal_websocket import BINARY, PING, framed

family = Family(sockets=4)
TEXT = "ab cd ef gh ij " * 2_000
"""30,000 characters."""
LARGE: dict[str, Any] = {"sockets": 8, "cost": Cost.BODY}
CREATE = "conversation.item.create"
DATA = "data:image/png;base64,"


async def realtime(attacker: Attacker, *, small: bool = False) -> Socket:
    """Open a session. Where something is read from its socket, it has begun."""
    one = await attacker.handshake(f"/v1/realtime?client_id={attacker.socket_id}", small=small)
    if not small:
        await attacker.answered(one)
    return one


async def realtime_unread(attacker: Attacker) -> Socket:
    """Open a Realtime session from which nothing is read."""
    return await realtime(attacker, small=True)


async def translations(attacker: Attacker) -> Socket:
    """Open a native connection that may translate."""
    return await attacker.send_hello(features=("interpret",))


def _translation(attacker: Attacker, target: str, text: str) -> bytes:
    """Start a translation, which replaces the one before it, and append a text."""
    place = f"translations-{attacker.place}"
    start = {"client_msg_id": uuid.uuid4().hex, "target": target, "on_busy": "interrupt"}
    return frame("interpret.start", conversation_id=place, **start) + frame(
        "source", conversation_id=place, off=0, text=text
    )


def _item(*parts: dict[str, str]) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": parts}


def _said(text: str) -> dict[str, object]:
    return _item({"type": "input_text", "text": text})


def _image(url: str) -> dict[str, str]:
    return {"type": "input_image", "image_url": url}


def _items_that_collide() -> list[bytes]:
    item = _said("Hello.") | {"id": "item"}
    return [
        frame(CREATE, item=item, previous_item_id="root"),
        frame(CREATE, item=item, previous_item_id="item"),
        frame("conversation.item.retrieve", item_id="item"),
        frame("conversation.item.delete", item_id="item"),
    ]


ONE_MORE = {"conversation": "none", "input": [_said("Hello.")], "max_output_tokens": 200}
DEEP = '{"type":"session.update","session":{"type":"realtime","tools":' + "[" * 5_000 + "]" * 5_000 + "}}"
WIDE = frame("response.create", response={"metadata": {f"k{n}": "v" for n in range(5_000)}})

family.flood(
    "session-items", "Adds items to a Realtime session, and asks for no reply.",
    [frame(CREATE, item=_said(text)) for text in (TEXT, "a", "b")], per_s=60, opens=realtime, expect="error",
)  # fmt: skip
family.flood(
    "colliding-items", "Creates, deletes and retrieves one item id.",
    _items_that_collide(), per_s=60, opens=realtime, expect="error",
)  # fmt: skip
family.unread(
    "unread-sessions", "Asks a Realtime session for replies, and reads none.",
    [frame("response.create", response=ONE_MORE)], per_s=20, opens=realtime_unread, sockets=8,
)  # fmt: skip
family.odd(
    "odd-sessions", "Sends malformed Realtime events, fewer than end a connection, and reconnects.",
    [framed(DEEP.encode()), WIDE, framed(b"[]"), frame("session.update", session=7)] * 4, opens=realtime,
    expect="error",
)  # fmt: skip
family.flood(
    "session-crowds", "Opens Realtime sessions and sends nothing.",
    [], per_s=1, times=0, opens=realtime, sockets=100, expect="session.created",
)  # fmt: skip
family.flood(
    "appended-text", "Replaces its live translation by one of 30,000 characters.",
    lambda me, _: _translation(me, "de", TEXT), per_s=20, opens=translations, expect="source_ack",
)  # fmt: skip
family.flood(
    "changed-languages", "Replaces its live translation by one into another language.",
    lambda me, number: _translation(me, ("de", "zh", "en")[number % 3], "word "), per_s=50,
    opens=translations, expect="source_ack",
)  # fmt: skip


# Large messages: items with images that never end, messages that are never whole, and those that are refused.
BEGUN = b'{"type":"%b","item":{"content":[{"type":"input_image","image_url":"' % CREATE.encode()
HEAD = framed(b" " * MB)[:-MB]
"""The head of a frame of 1 MiB."""
FIRST = framed(BEGUN + b"A" * 100 * KB, first_bits=0)
"""The first fragment of a large message."""
WHOLE = frame("conversation.item.retrieve", item_id="none")
"""Behind a whole message fragments and pings no longer count as those before the first."""
MORE = framed(b"A", opcode=0, first_bits=0) + framed(b"p", opcode=PING)


@cache
def _halves() -> tuple[bytes, bytes]:
    """The largest item, with an image of 720 KB, without eight letters in the middle of its base64."""
    url = DATA + b64encode(png(Random(0).randbytes(720 * KB))).decode()
    whole = json.dumps({"type": CREATE, "item": _item(_image(url))}).encode()
    return whole[: len(whole) // 2], whole[len(whole) // 2 + 8 :]


@cache
def _refused() -> tuple[bytes, ...]:
    """Messages of a megabyte, each refused for another reason: those that are JSON, then those that are not."""
    small = DATA + b64encode(png(b"points")).decode()
    begin, end = png(b"points")[:-12], png(b"points")[-12:]
    chunky = DATA + b64encode(begin + (bytes(4) + b"teXt" + bytes(4)) * 9_000 + end).decode()
    nul = {"text": "\\u0000" + "x" * 72}
    instructions = {"type": "realtime", "instructions": "\u00e9" * 170_000}
    odd: tuple[dict[str, object], ...] = (
        {"type": "session.update", "session": instructions},
        {"type": CREATE, "item": _item(_image(small), *[nul] * 9_000, {"type": "odd"})},
        {"type": CREATE, "item": _item(*[_image(small)] * 6_000)},
        {"type": CREATE, "item": _item(*[_image(chunky)] * 7, {"type": "odd"})},
        {"type": CREATE, "item": _item(_image(DATA + "A" * 1_000_000))},
        {"type": CREATE, "item": _item(_image(small)), "unknown": [0] * 300_000},
        {"type": CREATE, "item": _item(_image("\x00" * 170_000))},
        {"type": CREATE, "item": _item(_image("\ud800")), "unknown": ["x" * 15] * 49_000},
    )
    written = [json.dumps(one).encode() for one in odd]
    broken = [written[1][:-1], b"[" * 1_000_000, b'"' + b"\\\\" * 500_000, b"{},".join([b" "] * 250_000)]
    sizes = [len(one) for one in (*written, *broken)]
    assert all(800 * KB < size <= MB for size in sizes), sizes
    return tuple(framed(one) for one in (*written, *broken))


def _large_item(attacker: Attacker, number: int) -> bytes:
    begin, end = _halves()
    letters = number + 1_000 * (attacker.place + 100 * (attacker.life + 100 * attacker.number))
    return framed(b"%b%08d%b" % (begin, letters % 10**8, end))


family.unread(
    "large-items", "Adds items of 1 MiB with images as fast as they are taken.",
    _large_item, per_s=10, opens=realtime_unread, warm=_halves, **LARGE,
)  # fmt: skip


@family.attack(**LARGE | {"sockets": 18})
async def unended_messages(attacker: Attacker) -> None:
    """Begins Realtime messages of 1 MiB and never ends them."""
    one = await realtime(attacker)
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


@family.attack(warm=_refused, expect="error", **LARGE)
async def refused_messages(attacker: Attacker) -> None:
    """Sends Realtime messages of 1 MiB that are invalid."""
    one = await realtime(attacker)
    await one.write(_refused()[(attacker.number + attacker.place + attacker.life) % len(_refused())])
    await attacker.answered(one)


# Sound.
HEARS: dict[str, Any] = {"ground": TargetKind.OPEN}
RATE = 8_000
_chance = Random(0)
NOISE = [_chance.randbytes(RATE // 2) for _ in range(64)]
"""Quarters of a second."""
ODD = [framed(sound, opcode=BINARY) for sound in (b"", b"\1", bytes(8) + NOISE[0], b"\xff" * 8)]
"""No head, a piece of one, kinds that are not known."""


async def _hears(attacker: Attacker) -> Socket:
    one = await realtime(attacker)
    sound = {"input": {"format": {"type": "audio/pcm", "rate": RATE}}}
    await one.write(frame("session.update", session={"type": "realtime", "audio": sound}))
    return one


APPEND = frame("input_audio_buffer.append", audio=b64encode(NOISE[0]).decode())
family.flood(
    "session-noise", "Appends noise to a Realtime session and commits it.",
    [*[APPEND] * 9, frame("input_audio_buffer.commit")], per_s=100, opens=_hears, expect="session.updated", **HEARS,
)  # fmt: skip


def _control(kind: str, attacker: Attacker, **more: object) -> bytes:
    return frame(kind, conversation_id=f"sound-{attacker.place}", **more)


def _start(attacker: Attacker, **more: object) -> bytes:
    return _control("audio.start", attacker, input={"rate": RATE}, **more)


def _sound(number: int) -> bytes:
    before = b"\1\0" + (1).to_bytes(2, "big") + number.to_bytes(4, "big")
    return framed(before + NOISE[number % len(NOISE)], opcode=BINARY)


async def speaking(attacker: Attacker, **more: object) -> Socket:
    """Open a socket that is listened to; where there is no place it waits for nothing."""
    one = await attacker.send_hello(features=("audio",))
    await one.write(_start(attacker, **more))
    if await attacker.answered(one) != "audio.started":
        await attacker.listen(one)
    return one


async def _speaking_without_turns(attacker: Attacker) -> Socket:
    return await speaking(attacker, turn_detection={"type": "none"})


def _endless(attacker: Attacker, number: int) -> bytes:
    return _sound(number) + (_control("audio.commit", attacker) if number % 120 == 119 else b"")


family.flood(
    "noise-floods", "Sends noise 25 times as fast as it would be heard.",
    lambda _, number: _sound(number), per_s=100, opens=speaking, expect="audio.started", **HEARS,
)  # fmt: skip
family.flood(
    "endless-speech", "Has half a minute of noise recognized again and again.",
    _endless, per_s=100, opens=_speaking_without_turns, expect="audio.started", **HEARS,
)  # fmt: skip
family.flood(
    "sound-starts", "Starts and stops speaking 30 times a second.",
    lambda me, _: _control("audio.stop", me) + _start(me), per_s=30, opens=speaking, expect="audio.stopped", **HEARS,
)  # fmt: skip
family.odd(
    "odd-sound", "Sends 16 invalid audio frames, fewer than end a connection, and reconnects.",
    ODD * 4, opens=speaking, expect="error bad_frame", **HEARS,
)  # fmt: skip
