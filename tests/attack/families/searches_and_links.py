"""Search, links to read by, and replies at a reader's pace."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress

from tests.attack.attack import attack
from tests.attack.client import Attacker, beats
from tests.attack.families.slow_readers import LONG, OWNER, PREPARE_S, SMALL_BUFFER, a_long_conversation
from tests.attack.families.turns import send
from tests.chaos.minimal_websocket import Dropped, Refused, framed

NOWHERE = framed(json.dumps({"type": "search", "query": "xylophone quinces zugzwang", "limit": 100}).encode())
COSTLY = framed(json.dumps({"type": "search", "query": " ".join(f"x{n % 10}" for n in range(60))}).encode())
LATER = framed(json.dumps({"type": "search", "query": "hello", "before": "b" * 256}).encode())
SEARCHES = (NOWHERE, COSTLY, LATER)
PAGE = "GET /v1/shares/{share_id}{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LONG_CURSOR = "?before=" + "c" * 8_000
AT_ONCE = 50


async def a_shared_conversation(attacker: Attacker) -> str:
    """Share the long conversation; return the link's id."""
    await a_long_conversation(attacker)
    one = await attacker.send_hello(OWNER)
    with suppress(TimeoutError, Refused, Dropped):
        async with asyncio.timeout(PREPARE_S):
            await one.put(type="share", conversation_id=LONG)
            while (frame := await one.get())["type"] != "shared":
                if frame["type"] == "error":
                    raise Refused(0, frame["code"])
            return str(frame["share_id"])
    return ""


@attack(sockets=4, prepare=a_long_conversation)
async def searches(attacker: Attacker) -> None:
    """Searches a long conversation."""
    one = await attacker.send_hello(OWNER)
    await attacker.flood(one, lambda number: SEARCHES[number % len(SEARCHES)], per_s=50)


@attack(sockets=4)
async def shares(attacker: Attacker) -> None:
    """Shares a conversation and takes it back."""
    one = await attacker.send_hello()
    place = f"shares-{attacker.place}"
    await one.write(send(place))
    both = [
        framed(json.dumps({"type": kind, "conversation_id": place}).encode()) for kind in ("share", "unshare")
    ]
    await attacker.flood(one, lambda number: both[number % 2], per_s=200)


@attack(sockets=4)
async def guessed_links(attacker: Attacker) -> None:
    """Guesses links of shared conversations."""
    one = await attacker.connect()
    async for _ in beats(100):
        await attacker.ask(one, PAGE.format(share_id=secrets.token_urlsafe(16), query="").encode())


@attack(sockets=4, prepare=a_shared_conversation)
async def read_links(attacker: Attacker) -> None:
    """Reads a long shared conversation 50 times a second."""
    one = await attacker.connect()
    async for _ in beats(50):
        await attacker.ask(one, PAGE.format(share_id=attacker.job.note, query="").encode())


@attack(sockets=20, prepare=a_shared_conversation)
async def unread_links(attacker: Attacker) -> None:
    """Asks for a long shared conversation 50 times, and reads nothing."""
    one = await attacker.connect(receive_buffer=SMALL_BUFFER)
    await one.write(PAGE.format(share_id=attacker.job.note, query="").encode() * AT_ONCE)
    await asyncio.Event().wait()


@attack(sockets=4, prepare=a_shared_conversation)
async def long_cursors(attacker: Attacker) -> None:
    """Asks a link for a cursor of 8,000 characters."""
    one = await attacker.connect()
    async for _ in beats(50):
        await attacker.ask(one, PAGE.format(share_id=attacker.job.note, query=LONG_CURSOR).encode())


@attack(sockets=4)
async def slow_replies(attacker: Attacker) -> None:
    """Starts replies at ten characters a second and stops each."""
    one = await attacker.send_hello()
    params = {"max_new_tokens": 1_000, "chars_per_s": 10}
    await attacker.flood(
        one, lambda _: send(f"slow-{attacker.place}", on_busy="interrupt", params=params), per_s=10
    )
