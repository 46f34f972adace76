"""Search, links to read by, and replies at a reader's pace."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress

from tests.attack.attack import SMALL_BUFFER, Family
from tests.attack.client import Attacker
from tests.attack.families.slow_readers import LONG, OWNER, PREPARE_S, a_long_conversation
from tests.attack.families.turns import send
from tests.chaos.minimal_websocket import Dropped, Refused, framed

family = Family(sockets=4)
NOWHERE = framed(json.dumps({"type": "search", "query": "xylophone quinces zugzwang", "limit": 100}).encode())
COSTLY = framed(json.dumps({"type": "search", "query": " ".join(f"x{n % 10}" for n in range(60))}).encode())
LATER = framed(json.dumps({"type": "search", "query": "hello", "before": "b" * 256}).encode())
SEARCHES = (NOWHERE, COSTLY, LATER)
PAGE = "GET /v1/shares/{share_id}{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
LONG_CURSOR = "?before=" + "c" * 8_000
AT_ONCE = 50
SLOWLY = {"max_new_tokens": 1_000, "chars_per_s": 10}


def _page(share_id: str, query: str = "") -> bytes:
    return PAGE.format(share_id=share_id, query=query).encode()


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


@family.attack(prepare=a_long_conversation)
async def searches(attacker: Attacker) -> None:
    """Searches a long conversation."""
    one = await attacker.send_hello(OWNER)
    await attacker.flood(one, lambda number: SEARCHES[number % len(SEARCHES)], per_s=50)


@family.attack()
async def shares(attacker: Attacker) -> None:
    """Shares a conversation and takes it back."""
    one = await attacker.send_hello()
    place = f"shares-{attacker.place}"
    await one.write(send(place))
    both = [
        framed(json.dumps({"type": kind, "conversation_id": place}).encode()) for kind in ("share", "unshare")
    ]
    await attacker.flood(one, lambda number: both[number % 2], per_s=200)


family.ask_often(
    "guessed-links", "Guesses links of shared conversations.", lambda *_: _page(secrets.token_urlsafe(16)), per_s=100
)  # fmt: skip
family.ask_often(
    "read-links", "Reads a long shared conversation 50 times a second.",
    lambda me, _: _page(me.job.note), per_s=50, prepare=a_shared_conversation,
)  # fmt: skip


@family.attack(sockets=20, prepare=a_shared_conversation)
async def unread_links(attacker: Attacker) -> None:
    """Asks for a long shared conversation 50 times, and reads nothing."""
    one = await attacker.connect(receive_buffer=SMALL_BUFFER)
    await one.write(_page(attacker.job.note) * AT_ONCE)
    await asyncio.Event().wait()


family.ask_often(
    "long-cursors", "Asks a link for a cursor of 8,000 characters.",
    lambda me, _: _page(me.job.note, LONG_CURSOR), per_s=50, prepare=a_shared_conversation,
)  # fmt: skip
family.flood(
    "slow-replies", "Starts replies at ten characters a second and stops each.",
    lambda me, _: send(f"slow-{me.place}", on_busy="interrupt", params=SLOWLY), per_s=10,
)  # fmt: skip
