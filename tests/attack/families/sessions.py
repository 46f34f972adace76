"""Sessions over a socket, of the Realtime API and of translations: what they keep, what they are told, what they hear."""

from __future__ import annotations

import json
from base64 import b64encode
from itertools import cycle

from tests.attack.attack import SMALL_BUFFER, Family, TargetKind, beats
from tests.attack.client import Attacker, Socket
from tests.attack.families.audio import NOISE
from tests.chaos.minimal_websocket import framed

family = Family(sockets=4)
REALTIME = "/v1/realtime?client_id={name}"
TRANSLATIONS = "/v1/realtime/translations?client_id={name}"
TEXT = "ab cd ef gh ij " * 2_000
"""30,000 characters."""
LANGUAGES = ("de", "zh", "en")
OTHERS = '{"type":"response.create","response":{"conversation":"none","input":[%s],"max_output_tokens":200}}'
DEEP = '{"type":"session.update","session":{"type":"realtime","tools":' + "[" * 5_000 + "]" * 5_000 + "}}"
WIDE = json.dumps({"type": "response.create", "response": {"metadata": {f"k{n}": "v" for n in range(5_000)}}})


async def session(attacker: Attacker, path: str, *, receive_buffer: int | None = None) -> Socket:
    """A session that has begun. Raises Refused, Dropped."""
    one = await attacker.connect(receive_buffer=receive_buffer)
    await one.handshake(path=path.format(name=f"{attacker.client_id}-{attacker.place}"))
    if receive_buffer is None:
        attacker.count(str((await one.get())["type"]))
    return one


def event(kind: str, **fields: object) -> bytes:
    return framed(json.dumps({"type": kind} | fields).encode())


async def _send_all(attacker: Attacker, one: Socket, events: list[bytes], *, per_s: float) -> None:
    """Send events in turn, and count all that is answered. Raises Refused, Dropped."""
    await attacker.flood(one, lambda number: events[number % len(events)], per_s=per_s)


def _item(text: str) -> dict[str, object]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


@family.attack()
async def session_items(attacker: Attacker) -> None:
    """Adds items to a Realtime session, and asks for no reply."""
    one = await session(attacker, REALTIME)
    items = [event("conversation.item.create", item=_item(text)) for text in (TEXT, "a", "b")]
    await _send_all(attacker, one, items, per_s=60)


@family.attack()
async def colliding_items(attacker: Attacker) -> None:
    """Creates, deletes and retrieves one item id."""
    one = await session(attacker, REALTIME)
    item = _item("Hello.") | {"id": "item"}
    events = [
        event("conversation.item.create", item=item, previous_item_id="root"),
        event("conversation.item.create", item=item, previous_item_id="item"),
        event("conversation.item.retrieve", item_id="item"),
        event("conversation.item.delete", item_id="item"),
    ]
    await _send_all(attacker, one, events, per_s=60)


@family.attack(sockets=8)
async def unread_sessions(attacker: Attacker) -> None:
    """Asks a Realtime session for replies, and reads none."""
    one = await session(attacker, REALTIME, receive_buffer=SMALL_BUFFER)
    async for _ in beats(20):
        await one.write(framed((OTHERS % json.dumps(_item("Hello."))).encode()))


@family.attack()
async def odd_sessions(attacker: Attacker) -> None:
    """Sends malformed Realtime events, fewer than end a connection, and reconnects."""
    one = await session(attacker, REALTIME)
    odd = cycle((DEEP, WIDE, "[]", '{"type":"session.update","session":7}'))
    for _ in range(16):
        await one.write(framed(next(odd).encode()))
    for _ in range(16):
        await attacker.answered(one)


@family.attack(sockets=100)
async def session_crowds(attacker: Attacker) -> None:
    """Opens Realtime sessions and sends nothing."""
    one = await session(attacker, REALTIME)
    await attacker.listen(one)


@family.attack()
async def appended_text(attacker: Attacker) -> None:
    """Appends 30,000 characters to be translated."""
    one = await session(attacker, TRANSLATIONS)
    settings = {"audio": {"output": {"language": "de"}}}
    await one.write(event("session.update", session=settings))
    await _send_all(attacker, one, [event("session.input_text_buffer.append", text=TEXT)], per_s=20)


@family.attack()
async def changed_languages(attacker: Attacker) -> None:
    """Changes the target language with every word."""
    one = await session(attacker, TRANSLATIONS)
    events: list[bytes] = []
    for language in LANGUAGES:
        events.append(event("session.update", session={"audio": {"output": {"language": language}}}))
        events.append(event("session.input_text_buffer.append", text="word "))
    await _send_all(attacker, one, events, per_s=100)


@family.attack(sockets=8)
async def unread_translations(attacker: Attacker) -> None:
    """Appends words to be translated, and reads nothing."""
    one = await session(attacker, TRANSLATIONS, receive_buffer=SMALL_BUFFER)
    await one.write(event("session.update", session={"audio": {"output": {"language": "de"}}}))
    async for _ in beats(100):
        await one.write(event("session.input_text_buffer.append", text="Good morning. "))


@family.attack(ground=TargetKind.SPEECH)
async def session_noise(attacker: Attacker) -> None:
    """Appends noise to a Realtime session and commits it."""
    one = await session(attacker, REALTIME)
    sound = {"input": {"format": {"type": "audio/pcmu"}}}
    await one.write(event("session.update", session={"type": "realtime", "audio": sound}))
    append = event("input_audio_buffer.append", audio=b64encode(NOISE[0]).decode())
    commit = event("input_audio_buffer.commit")
    await _send_all(attacker, one, [*[append] * 9, commit], per_s=100)
