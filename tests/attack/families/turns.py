"""Messages and turns: more than one client needs, or all at once."""

from __future__ import annotations

import asyncio
import json
import uuid

from tests.attack.attack import Family, TargetKind, beats
from tests.attack.client import Attacker
from tests.chaos.minimal_websocket import framed

family = Family(sockets=4)
QUEUED = 17
"""Turns of one conversation: one that runs and 16 that wait."""
LONG = "ab cd ef gh ij " * 2_100
"""As many characters as a message may have, about: far more tokens than fit the demo model's window."""
LIST = framed(b'{"type":"conversations","limit":200}')


def send(conversation_id: str, content: str = "Hello.", *, words: int = 1, **fields: object) -> bytes:
    """Return a `send` frame whose id was never used."""
    frame: dict[str, object] = {
        "type": "send",
        "client_msg_id": uuid.uuid4().hex,
        "conversation_id": conversation_id,
        "content": content,
        "params": {"max_new_tokens": words},
    }
    return framed(json.dumps(frame | fields).encode())


def _anew(attacker: Attacker, number: int, content: str = "Hello.") -> bytes:
    """A message to a conversation of its own."""
    return send(f"{attacker.place}-{attacker.life}-{number}", content)


def _taken_back(attacker: Attacker, _: int) -> bytes:
    place = f"rollbacks-{attacker.place}"
    cancel = {"type": "cancel", "conversation_id": place, "mode": "rollback"}
    return send(place, words=100, on_busy="rollback") + framed(json.dumps(cancel).encode())


@family.attack(sockets=20)
async def all_turns(attacker: Attacker) -> None:
    """Enqueues messages until one client would have all turns."""
    one = await attacker.send_hello()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(attacker.listen(one))
        async for number in beats(60):
            if number >= 60:
                break
            await one.write(send(f"hog-{attacker.place}-{number // QUEUED}", words=500, on_busy="enqueue"))


family.flood(
    "send-flood", "Sends 48 messages a second, each to a new conversation.", _anew, per_s=48, sockets=12
)
family.flood(
    "interrupts", "Interrupts its own reply 40 times a second.",
    lambda me, _: send(f"interrupts-{me.place}", words=100, on_busy="interrupt"), per_s=40,
)  # fmt: skip
family.flood("rollbacks", "Sends a message and takes it back.", _taken_back, per_s=40)


@family.attack(sockets=1000, together=True)
async def many_clients(attacker: Attacker) -> None:
    """Connects as 1,000 clients from a few addresses; each sends a message."""
    one = await attacker.send_hello(f"client-{attacker.number}-{attacker.place}")
    await one.write(send("default", words=200))
    await attacker.listen(one)


family.flood(
    "many-conversations", "Starts thousands of conversations, 100 a second on each socket.",
    _anew, per_s=100, sockets=10,
)  # fmt: skip
family.flood(
    "long-messages", "Sends messages that fit in no window.",
    lambda me, number: _anew(me, number, LONG), per_s=20, ground=TargetKind.MODEL,
)  # fmt: skip


@family.attack()
async def titles(attacker: Attacker) -> None:
    """Renames a conversation 200 times a second and lists conversations."""
    one = await attacker.send_hello()
    rename = {"type": "rename", "conversation_id": f"titles-{attacker.place}", "title": "t" * 200}
    frames = (framed(json.dumps(rename).encode()), LIST)
    await one.write(send(f"titles-{attacker.place}"))
    await attacker.flood(one, lambda number: frames[number % 2], per_s=200)
