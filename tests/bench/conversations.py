"""The cost of stored and live conversations: `python -m tests.bench.conversations`; a table, and JSON.

First one conversation in an empty Redis: while readers may still resume in the middle of a reply, and once its journal has
expired. Then a hundred thousand copies of another one, under their own names. A thousand are followed, every fourth one with a
reply that is being written. The same gateway is measured before that, too.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from redis.asyncio import Redis

import midstream
from engine.scripted import ScriptedEngine
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store.codec import Keys, now_ms
from sessions.turn.policy import Policy
from tests.bench.report import Measured, Report, at_most, run_lab
from tests.chaos import gateway
from tests.chaos.memory import resident_bytes
from tests.chaos.store_server import store_server
from tests.server_process import serving
from tests.sessions.chat_driver import CONVERSATION_ID, Chat
from tests.sessions.recorder import Recorder

OWNER = Owner("key:somebody", "00112233445566778899aabbccddeeff")
PER_EXCHANGE, PER_TEXT = 1024, 1.3
"""The most that a conversation without its journal may take: bytes for each exchange, and for each byte of its text."""
_TEXT = """the of and a to in is you that it for on are with as at be this have from or one had by word but not what
all were"""
WORDS = _TEXT.split()
REPLY_TOKENS = 300
TTL_S = 30 * 24 * 3600
LONG_REPLY = 1_000
"""Words of a reply that is being written: enough for the whole measurement."""
WRITTEN = 4
"""One in so many live conversations has a reply that is being written."""
PACE_S = 0.25
"""Seconds between two texts of a reply: all replies together make a thousand texts a second."""
PROBE = "probe"
"""The measured client: each of its messages goes to another one of its conversations."""
EACH = 10
"""Conversations of most owners."""
BATCH = 500
SETTLE_S = 2.0


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The size of everything. `long`: exchanges of the one conversation; `exchanges`: of each of the many."""

    long: int = 100
    stored: int = 100_000
    live: int = 1_000
    exchanges: int = 5
    samples: int = 300


QUICK = Scale(long=5, stored=500, live=10, exchanges=2, samples=5)


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a conversation of so many `exchanges`, before and after its journal expires; `text`: its text in UTF-8."""

    exchanges: int
    text: int
    before: int
    after: int

    @property
    def bound(self) -> float:
        """The most bytes that it may take once its journal has expired."""
        return PER_TEXT * self.text + PER_EXCHANGE * self.exchanges


class Memory(NamedTuple):
    """Bytes of the gateway and of the store."""

    gateway: int
    store: int


async def cost(store: Redis, *, exchanges: int, tokens: int, words: Sequence[str] = WORDS) -> Cost:
    """Have a conversation with a scripted engine, and measure its keys. The store must be empty."""
    engine = ScriptedEngine(context_tokens=1_000_000, by_hand=True)
    sessions = Sessions(client=store, engine=engine, policy=Policy(ttl_s=3600, max_turns=10))
    chat = Chat(sessions, engine, OWNER, Recorder())
    draw = random.Random(13)
    text = 0
    async with sessions.running(alone=True):
        for number in range(exchanges):
            requested = f"Question {number}: what comes next, and why does it?"
            reply = [f" {draw.choice(words)}" for _ in range(tokens)]
            text += len(requested.encode()) + len("".join(reply).encode())
            engine.script(reply)
            await chat.running(requested, "".join(reply), client_msg_id=f"{draw.getrandbits(128):032x}")
            engine.step()
            await chat.wait_idle()
            chat.reader.events.clear()
        before = await _bytes(store, chat.keys)
        await store.unlink(chat.keys.journal)
        after = await _bytes(store, chat.keys)
        chat.leave()
    return Cost(exchanges=exchanges, text=text, before=before, after=after)


async def _bytes(store: Redis, keys: Keys) -> int:
    sizes = [await store.memory_usage(key, samples=0) for key in keys.pair()]
    return sum(int(size or 0) for size in sizes)


async def measure(scale: Scale) -> Report:
    """Measure one conversation, then a gateway with an almost empty store, with many conversations, and with live ones too."""
    report = Report(details={"scale": scale})
    script = gateway.Script(words=LONG_REPLY, pace_s=PACE_S)
    with (
        tempfile.TemporaryDirectory(prefix="midstream-many-") as name,
        store_server(Path(name) / "store") as store,
    ):
        environ = {"MIDSTREAM_REDIS_URL": store.url, "MIDSTREAM_LOG_LEVEL": "warning", **gateway.UNHURRIED}
        async with Redis(port=store.port) as client:
            found = await cost(client, exchanges=scale.long, tokens=REPLY_TOKENS)
            report.findings += _cost_of_one(found)
            await client.flushdb()
            await cost(client, exchanges=scale.exchanges, tokens=REPLY_TOKENS, words=("word",))
            copies = [await client.dump(key) for key in Keys.of(OWNER, CONVERSATION_ID).pair()]
            await client.flushdb()
            with serving(Path(name), environ, command=gateway.command(script)) as server:
                assert server.process is not None
                pid = server.process.pid
                await _plant(client, copies, Owner("anonymous", PROBE), scale.samples)

                async def look() -> Memory:
                    async with _client(server.ws_url, PROBE) as one:
                        for number in range(scale.samples):  # the gateway has done each kind of work
                            await one.conversations()
                            await _go_on(one, f"c{number}", tokens=1)
                    await asyncio.sleep(SETTLE_S)
                    return Memory(resident_bytes(pid), (await client.info("memory"))["used_memory"])

                await look()  # the first one warms up
                before = await look()
                for number in range(scale.stored // EACH):
                    await _plant(client, copies, _owner(number), EACH)
                stored = await look()
                async with _live(server.ws_url, scale):
                    live = await look()
    report.findings += _cost_of_many(scale, before, stored, live)
    return report


async def _plant(client: Redis, copies: Sequence[bytes | None], owner: Owner, count: int) -> None:
    for first in range(0, count, BATCH):
        names = [f"c{number}" for number in range(first, min(first + BATCH, count))]
        pipe = client.pipeline(transaction=False)
        for name in names:
            for key, dumped in zip(Keys.of(owner, name).pair(), copies, strict=True):
                if dumped is not None:
                    pipe.restore(key, TTL_S * 1000, dumped)
        now = now_ms()
        updated = {name: now + place for place, name in enumerate(names, first - count)}
        pipe.zadd(f"ms:conversations:{{{owner}}}", updated)
        await pipe.execute()


def _owner(number: int) -> Owner:
    return Owner("anonymous", f"owner-{number}")


@asynccontextmanager
async def _live(url: str, scale: Scale) -> AsyncIterator[None]:
    """Follow so many conversations; every fourth one has a reply that is being written, the others have ended."""
    async with AsyncExitStack() as stack:
        for number in range(scale.live):
            one = await stack.enter_async_context(_client(url, _owner(number).client_id))
            await _go_on(one, "c0", tokens=1 if number % WRITTEN else LONG_REPLY)
        yield


def _client(url: str, client_id: str) -> AbstractAsyncContextManager[midstream.Client]:
    once = midstream.Reconnecting(timeout_s=0, grace_s=0)
    return midstream.connect(url, client_id=client_id, reconnecting=once, compression=None)


async def _go_on(one: midstream.Client, conversation_id: str, *, tokens: int) -> None:
    await one.history(conversation_id)
    await one.send("Go on.", conversation_id=conversation_id, params={"max_new_tokens": tokens})


def _cost_of_one(found: Cost) -> Iterator[Measured]:
    exchange = f"memory of Redis: an exchange with {found.text / found.exchanges:,.0f} bytes of text"
    for when, total, target in (
        ("while its reply may be resumed", found.before, None),
        ("later", found.after, at_most(found.bound / found.exchanges)),
    ):
        yield Measured(
            label=f"{exchange}, {when}", value=total / found.exchanges, unit="bytes", target=target
        )


def _cost_of_many(scale: Scale, before: Memory, stored: Memory, live: Memory) -> Iterator[Measured]:
    looks = {
        f"{scale.samples} stored": before,
        f"{scale.stored:,} stored": stored,
        f"{scale.live:,} of them live": live,
    }
    each = f"each conversation of {scale.exchanges} exchanges of {REPLY_TOKENS} words"
    for label, value, unit, readings in (
        ("memory of the gateway", live.gateway / 2**20, "MB", {name: seen.gateway / 2**20 for name, seen in looks.items()}),
        ("memory of the gateway: each live conversation with its socket", (live.gateway - stored.gateway) / 1024 / scale.live, "KB", {}),
        ("memory of Redis", live.store / 2**20, "MB", {name: seen.store / 2**20 for name, seen in looks.items()}),
        (f"memory of Redis: {each}", (stored.store - before.store) / 1024 / scale.stored, "KB", {}),
    ):  # fmt: skip
        yield Measured(label=label, value=value, unit=unit, readings=readings)


def main(options: argparse.Namespace) -> Report:
    """Measure."""
    return asyncio.run(measure(QUICK if options.quick else Scale()))


if __name__ == "__main__":
    sys.exit(run_lab("tests.bench.conversations", __doc__, main, file="many.json"))
