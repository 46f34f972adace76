"""Readers who ask for much and take nothing. What they read is made before: a long conversation, and one of many branches."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import suppress

from tests.attack.attack import SMALL_BUFFER, Family, beats
from tests.attack.client import Attacker
from tests.attack.families.turns import send
from tests.chaos.minimal_websocket import Dropped, Frame, MinimalWebSocket, Refused, framed

family = Family()
OWNER = "attackers-past"
"""One client, whose conversations all attackers read."""
LONG, WIDE = "long", "wide"
MESSAGES = 24
CONTENT = "x" * 30_000
SIBLINGS = 600
AT_ONCE = 16
PREPARE_S = 20.0
EVENTS = (
    "GET /v1/conversations/{conversation}/events?client_id={owner} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    "Last-Event-ID: {epoch}:0\r\n\r\n"
)
HISTORY = framed(json.dumps({"type": "history", "conversation_id": WIDE, "limit": 200}).encode())


async def a_long_conversation(attacker: Attacker) -> str:
    """24 messages of 30,000 characters, fewer where the server has enough of it; gives the conversation's epoch."""
    one = await attacker.send_hello(OWNER)
    epoch = ""
    with suppress(TimeoutError, Refused, Dropped):
        async with asyncio.timeout(PREPARE_S):
            for _ in range(MESSAGES):
                await one.write(send(LONG, CONTENT))
                accepted = await _next(one, "accepted")
                epoch = accepted["epoch"]
                await _next(one, "done")
    return epoch


async def a_wide_conversation(attacker: Attacker) -> str:
    """A message with 600 replies beside one another, fewer where the server has enough of it."""
    one = await attacker.send_hello(OWNER)
    with suppress(TimeoutError, Refused, Dropped):
        async with asyncio.timeout(PREPARE_S):
            await one.write(send(WIDE))
            reply = (await _next(one, "done"))["message_id"]
            for _ in range(SIBLINGS // AT_ONCE):
                for _ in range(AT_ONCE):
                    await one.write(_regenerate(reply))
                for _ in range(AT_ONCE):
                    await _next(one, "done")
    return ""


def _regenerate(reply: str) -> bytes:
    """Another reply beside one, behind those that are still made."""
    frame = {
        "type": "regenerate",
        "message_id": reply,
        "conversation_id": WIDE,
        "client_msg_id": uuid.uuid4().hex,
        "on_busy": "enqueue",
        "params": {"max_new_tokens": 1},
    }
    return framed(json.dumps(frame).encode())


async def _next(one: MinimalWebSocket, kind: str) -> Frame:
    """The next frame of a kind. Raises Refused where a request was."""
    while (frame := await one.get())["type"] != kind:
        if frame["type"] == "error":
            raise Refused(0, frame["code"])
    return frame


@family.attack(prepare=a_wide_conversation)
async def unread_history(attacker: Attacker) -> None:
    """Asks for a long history 984 times, and reads nothing."""
    one = await attacker.send_hello(OWNER, receive_buffer=SMALL_BUFFER)
    async for number in beats(500):
        if number >= 984:
            break
        await one.write(HISTORY)
    await asyncio.Event().wait()


@family.attack(sockets=4, prepare=a_long_conversation)
async def oldest_seq(attacker: Attacker) -> None:
    """Resumes 720 KB from the first event, and reads nothing."""
    one = await attacker.send_hello(OWNER, receive_buffer=SMALL_BUFFER)
    async for _ in beats(20):
        await one.write(_from_the_oldest(attacker))


@family.attack(sockets=2, prepare=a_long_conversation)
async def oldest_seq_read(attacker: Attacker) -> None:
    """Resumes 720 KB from the first event, and reads it."""
    one = await attacker.send_hello(OWNER)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(one.discard())
        async for _ in beats(20):
            await one.write(_from_the_oldest(attacker))


@family.attack(sockets=20, prepare=a_long_conversation)
async def unread_events(attacker: Attacker) -> None:
    """Opens event streams of a long conversation, and reads nothing."""
    one = await attacker.connect(receive_buffer=SMALL_BUFFER)
    await one.write(EVENTS.format(conversation=LONG, owner=OWNER, epoch=attacker.job.note).encode())
    await asyncio.Event().wait()


def _from_the_oldest(attacker: Attacker) -> bytes:
    frame = {"type": "resume", "conversation_id": LONG, "epoch": attacker.job.note, "after_seq": 0}
    return framed(json.dumps(frame).encode())
