"""Messages and turns: more than one client needs, or all at once."""

from __future__ import annotations

import asyncio
import json
import uuid

from tests.attack.attack import Attack, Ground
from tests.attack.attacker import Attacker, Socket, beats
from tests.chaos.thin_socket import framed

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


async def all_turns(me: Attacker) -> None:
    """Enqueues messages in many conversations of one client until all turns are its own; each of 20 sockets sends 60."""
    one = await me.greet()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(me.listen(one))
        async for number in beats(60):
            if number >= 60:
                break
            await one.write(send(f"hog-{me.place}-{number // QUEUED}", words=500, on_busy="enqueue"))


async def send_flood(me: Attacker) -> None:
    """Sends 48 messages a second, each to a conversation of its own."""
    await _talk(me, per_s=48, words=1)


async def interrupts(me: Attacker) -> None:
    """Interrupts its own reply by the next message, 40 times a second."""
    one = await me.greet()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(me.listen(one))
        async for _ in beats(40):
            await one.write(send(f"interrupts-{me.place}", words=100, on_busy="interrupt"))


async def rollbacks(me: Attacker) -> None:
    """Sends a message and takes it back at once, 40 times a second."""
    one = await me.greet()
    cancel = {"type": "cancel", "conversation_id": f"rollbacks-{me.place}", "mode": "rollback"}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(me.listen(one))
        async for _ in beats(40):
            await one.write(send(f"rollbacks-{me.place}", words=100, on_busy="rollback"))
            await one.write(framed(json.dumps(cancel).encode()))


async def many_clients(me: Attacker) -> None:
    """Is 1,000 clients of a few addresses: each says hello, sends a message, and stays."""
    one = await me.greet(f"client-{me.number}-{me.place}")
    await one.write(send("default", words=200))
    await me.listen(one)


async def many_conversations(me: Attacker) -> None:
    """Begins thousands of conversations, 100 a second on each of 10 sockets."""
    await _talk(me, per_s=100, words=1)


async def long_messages(me: Attacker) -> None:
    """Sends messages of 31,500 characters that no window holds, 20 a second."""
    await _talk(me, per_s=20, words=1, content=LONG)


async def titles(me: Attacker) -> None:
    """Begins a conversation, then renames it 200 times a second and asks for the list."""
    one = await me.greet()
    rename = {"type": "rename", "conversation_id": f"titles-{me.place}", "title": "t" * 200}
    frames = (framed(json.dumps(rename).encode()), framed(b'{"type":"conversations","limit":200}'))
    await one.write(send(f"titles-{me.place}"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(me.listen(one))
        async for number in beats(200):
            await one.write(frames[number % 2])


async def _talk(me: Attacker, *, per_s: float, words: int, content: str = "Hello.") -> None:
    one: Socket = await me.greet()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(me.listen(one))
        async for number in beats(per_s):
            await one.write(send(f"{me.place}-{me.life}-{number}", content, words=words))


ATTACKS = (
    Attack(run=all_turns, sockets=20),
    Attack(run=send_flood, sockets=12),
    Attack(run=many_clients, sockets=1_000, together=True),
    Attack(run=many_conversations, sockets=10),
    Attack(run=interrupts, sockets=4),
    Attack(run=rollbacks, sockets=4),
    Attack(run=titles, sockets=4),
    Attack(run=long_messages, sockets=4, ground=Ground.MODEL),
)
