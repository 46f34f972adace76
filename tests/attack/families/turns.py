"""Messages and turns: more than one client needs, or all at once."""

from __future__ import annotations

import asyncio
import json
import uuid

from tests.attack.attack import TargetKind, attack
from tests.attack.client import Attacker, Socket, beats
from tests.chaos.minimal_websocket import framed

QUEUED = 17
"""Turns of one conversation: one that runs and 16 that wait."""
LONG = "ab cd ef gh ij " * 2_100
"""As many characters as a message may have, about: far more tokens than fit the demo model's window."""


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


@attack(sockets=20)
async def all_turns(attacker: Attacker) -> None:
    """Enqueues messages until one client would have all turns."""
    one = await attacker.send_hello()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(attacker.listen(one))
        async for number in beats(60):
            if number >= 60:
                break
            await one.write(send(f"hog-{attacker.place}-{number // QUEUED}", words=500, on_busy="enqueue"))


@attack(sockets=12)
async def send_flood(attacker: Attacker) -> None:
    """Sends 48 messages a second, each to a new conversation."""
    await _send_messages(attacker, per_s=48, words=1)


@attack(sockets=4)
async def interrupts(attacker: Attacker) -> None:
    """Interrupts its own reply 40 times a second."""
    one = await attacker.send_hello()
    await attacker.flood(
        one, lambda _: send(f"interrupts-{attacker.place}", words=100, on_busy="interrupt"), per_s=40
    )


@attack(sockets=4)
async def rollbacks(attacker: Attacker) -> None:
    """Sends a message and takes it back."""
    one = await attacker.send_hello()
    cancel = {"type": "cancel", "conversation_id": f"rollbacks-{attacker.place}", "mode": "rollback"}
    taken_back = framed(json.dumps(cancel).encode())
    place = f"rollbacks-{attacker.place}"
    await attacker.flood(one, lambda _: send(place, words=100, on_busy="rollback") + taken_back, per_s=40)


@attack(sockets=1000, together=True)
async def many_clients(attacker: Attacker) -> None:
    """Connects as 1,000 clients from a few addresses; each sends a message."""
    one = await attacker.send_hello(f"client-{attacker.number}-{attacker.place}")
    await one.write(send("default", words=200))
    await attacker.listen(one)


@attack(sockets=10)
async def many_conversations(attacker: Attacker) -> None:
    """Starts thousands of conversations, 100 a second on each socket."""
    await _send_messages(attacker, per_s=100, words=1)


@attack(sockets=4, ground=TargetKind.MODEL)
async def long_messages(attacker: Attacker) -> None:
    """Sends messages that fit in no window."""
    await _send_messages(attacker, per_s=20, words=1, content=LONG)


@attack(sockets=4)
async def titles(attacker: Attacker) -> None:
    """Renames a conversation 200 times a second and lists conversations."""
    one = await attacker.send_hello()
    rename = {"type": "rename", "conversation_id": f"titles-{attacker.place}", "title": "t" * 200}
    frames = (framed(json.dumps(rename).encode()), framed(b'{"type":"conversations","limit":200}'))
    await one.write(send(f"titles-{attacker.place}"))
    await attacker.flood(one, lambda number: frames[number % 2], per_s=200)


async def _send_messages(attacker: Attacker, *, per_s: float, words: int, content: str = "Hello.") -> None:
    one: Socket = await attacker.send_hello()
    await attacker.flood(
        one,
        lambda number: send(f"{attacker.place}-{attacker.life}-{number}", content, words=words),
        per_s=per_s,
    )
