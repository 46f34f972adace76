"""Messages and turns, more than one client needs, or all at once; readers who ask for much and take nothing; searches and links."""

from __future__ import annotations

import asyncio
import secrets
import uuid
from contextlib import suppress

from tests.attack.attack import Family, TargetKind, connect_unread
from tests.attack.client import Attacker, Socket, beats
from tests.attack.requests import frame, get, send
from tests.chaos.minimal_websocket import Dropped, Frame, MinimalWebSocket, Refused

family = Family(sockets=4)
QUEUED = 17
"""Turns of one conversation: one that runs and 16 that wait."""
TOO_LONG = "ab cd ef gh ij " * 2_100
"""As many characters as a message may have, about: far more tokens than fit the demo model's window."""
OWNER = "attackers-past"
"""One client, whose conversations all attackers read."""
LONG, WIDE = "long", "wide"
MESSAGES = 24
CONTENT = "x" * 30_000
SIBLINGS = 600
AT_ONCE = 16
PREPARE_S = 20.0


def _anew(attacker: Attacker, number: int, content: str = "Hello.") -> bytes:
    """A message to a conversation of its own."""
    return send(f"{attacker.place}-{attacker.life}-{number}", content)


def _taken_back(attacker: Attacker, _: int) -> bytes:
    place = f"rollbacks-{attacker.place}"
    cancel = frame("cancel", conversation_id=place, mode="rollback")
    return send(place, words=100, on_busy="rollback") + cancel


def _hog(attacker: Attacker, number: int) -> bytes:
    return send(f"hog-{attacker.place}-{number // QUEUED}", words=500, on_busy="enqueue")


family.flood(
    "all-turns", "Enqueues messages until one client would have all turns.", _hog, per_s=60, times=60, sockets=20
)  # fmt: skip
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
    lambda me, number: _anew(me, number, TOO_LONG), per_s=20, ground=TargetKind.MODEL,
)  # fmt: skip


async def _with_a_conversation(attacker: Attacker) -> Socket:
    one = await attacker.send_hello()
    await one.write(send(f"shares-{attacker.place}"))
    return one


family.flood(
    "shares", "Shares a conversation and takes it back.",
    lambda me, number: frame(("share", "unshare")[number % 2], conversation_id=f"shares-{me.place}"), per_s=200,
    opens=_with_a_conversation, expect="shared",
)  # fmt: skip
family.flood(
    "slow-replies", "Starts replies at ten characters a second and stops each.",
    lambda me, _: send(
        f"slow-{me.place}", on_busy="interrupt", params={"max_new_tokens": 1_000, "chars_per_s": 10}
    ), per_s=10, expect="done",
)  # fmt: skip


# What readers ask for is made before: a long conversation, and one of many branches.
async def a_long_conversation(attacker: Attacker) -> str:
    """24 messages of 30,000 characters, fewer where the server has enough of it; gives the conversation's epoch."""
    one = await attacker.send_hello(OWNER)
    epoch = ""
    with suppress(TimeoutError, Refused, Dropped):
        async with asyncio.timeout(PREPARE_S):
            for _ in range(MESSAGES):
                await one.write(send(LONG, CONTENT))
                epoch = (await _next(one, "accepted"))["epoch"]
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
    ids = {"message_id": reply, "conversation_id": WIDE, "client_msg_id": uuid.uuid4().hex}
    return frame("regenerate", **ids, on_busy="enqueue", params={"max_new_tokens": 1})


async def a_shared_conversation(attacker: Attacker) -> str:
    """Share the long conversation; return the link's id."""
    await a_long_conversation(attacker)
    one = await attacker.send_hello(OWNER)
    with suppress(TimeoutError, Refused, Dropped):
        async with asyncio.timeout(PREPARE_S):
            await one.put(type="share", conversation_id=LONG)
            return str((await _next(one, "shared"))["share_id"])
    return ""


async def _next(one: MinimalWebSocket, kind: str) -> Frame:
    """The next frame of a kind. Raises Refused where a request was."""
    while (received := await one.get())["type"] != kind:
        if received["type"] == "error":
            raise Refused(0, received["code"])
    return received


async def _as_owner(attacker: Attacker) -> Socket:
    return await attacker.send_hello(OWNER)


async def _as_owner_unread(attacker: Attacker) -> Socket:
    return await attacker.send_hello(OWNER, small=True)


family.unread(
    "unread-history", "Asks for a long history 984 times, and reads nothing.",
    [frame("history", conversation_id=WIDE, limit=200)], per_s=500, times=984, opens=_as_owner_unread, sockets=1,
    prepare=a_wide_conversation,
)  # fmt: skip
family.unread(
    "oldest-seq", "Resumes 720 KB from the first event, and reads nothing.",
    lambda me, _: frame("resume", conversation_id=LONG, epoch=me.job.note, after_seq=0), per_s=20,
    opens=_as_owner_unread, prepare=a_long_conversation,
)  # fmt: skip
family.unread(
    "unread-events", "Opens event streams of a long conversation, and reads nothing.",
    lambda me, _: get(
        f"/v1/conversations/{LONG}/events?client_id={OWNER}", Last_Event_ID=f"{me.job.note}:0"
    ), times=1, opens=connect_unread, sockets=20, prepare=a_long_conversation,
)  # fmt: skip


@family.attack(prepare=a_long_conversation, expect="HTTP 429")
async def exports(attacker: Attacker) -> None:
    """Asks for exports 20 times a second, and reads nothing."""
    async for number in beats(20):
        path = f"/v1/export?client_id={attacker.client_id}-{number % 4}"
        await attacker.ask(get(path), await attacker.connect(small=True))
        if number % 8 == 7:
            attacker.close()


family.flood(
    "searches", "Searches a long conversation.", [
        frame("search", query="xylophone quinces zugzwang", limit=100),
        frame("search", query=" ".join(f"x{n % 10}" for n in range(60))),
        frame("search", query="hello", before="b" * 256),
    ], per_s=50, opens=_as_owner, prepare=a_long_conversation, expect="found",
)  # fmt: skip
family.ask_often(
    "guessed-links", "Guesses links of shared conversations.",
    lambda *_: get(f"/v1/shares/{secrets.token_urlsafe(16)}"), per_s=100, expect="HTTP 404",
)  # fmt: skip
family.ask_often(
    "read-links", "Reads a long shared conversation 50 times a second.",
    lambda me, _: get(f"/v1/shares/{me.job.note}"), per_s=50, prepare=a_shared_conversation, expect="HTTP 200",
)  # fmt: skip
