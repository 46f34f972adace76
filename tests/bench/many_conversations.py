"""The cost of stored and live conversations: `python -m tests.bench.many_conversations`; a table, and JSON.

A Redis holds a hundred thousand conversations. A thousand are followed, every fourth one with a reply that is being written. The same gateway is measured before that, too. The product writes one
conversation; the others are copies under their own names.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store.codec import Keys, now_ms
from sessions.store.journal import Compaction
from sessions.turn.policy import Policy
from tests.bench.report import RESULTS, Measured, Report
from tests.chaos import gateway
from tests.chaos.memory import resident_bytes
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.chaos.store_server import store_server
from tests.server_process import serving
from tests.sessions.chat_driver import Chat
from tests.sessions.recorder import Recorder

TTL_S = 30 * 24 * 3600
REPLY = "word " * 300
WORDS = 1_000
"""Words of a reply that is being written: enough for the whole measurement."""
WRITTEN = 4
"""One in so many live conversations has a reply that is being written."""
PACE_S = 0.25
"""Seconds between two texts of a reply: all replies together make a thousand texts a second."""
PROBE = "probe"
"""The measured client: each of its messages goes to another one of its conversations."""
EACH = 10
"""Conversations of most owners."""
BATCH, AT_ONCE = 500, 20
SETTLE_S = 2.0
Dumps = tuple[bytes, bytes | None]


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The size of everything."""

    stored: int = 100_000
    live: int = 1_000
    exchanges: int = 5
    samples: int = 300


QUICK = Scale(stored=500, live=10, exchanges=2, samples=5)


class Measurement(NamedTuple):
    """Memory of the gateway and of the store."""

    gateway_bytes: int
    store_bytes: int


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many_conversations", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of it, to see that it works")
    parser.add_argument(
        "--out", type=Path, help="file for results (docs/bench/many.json; with --quick: none)"
    )
    options = parser.parse_args()
    report = asyncio.run(measure(QUICK if options.quick else Scale()))
    return report.conclude(options.out or (None if options.quick else RESULTS / "many.json"))


async def measure(scale: Scale) -> Report:
    """Measure a gateway with an almost empty store, with many conversations, and with live ones too."""
    report = Report(details={"scale": scale})
    script = gateway.Script(words=WORDS, pace_s=PACE_S)
    with (
        tempfile.TemporaryDirectory(prefix="midstream-many-") as name,
        store_server(Path(name) / "store") as store,
    ):
        environ = {"MIDSTREAM_REDIS_URL": store.url, "MIDSTREAM_LOG_LEVEL": "warning", **gateway.UNHURRIED}
        with serving(Path(name), environ, command=gateway.command(script)) as server:
            assert server.process is not None
            pid = server.process.pid
            async with Redis(port=store.port) as client:
                copies = await _template(client, scale)
                await _plant(client, copies, Owner("anonymous", PROBE), scale.samples)

                async def look() -> Measurement:
                    one = await _greeted(server.port, PROBE)
                    for number in range(scale.samples):  # the gateway has done each kind of work
                        await _request(one, type="conversations", limit=50)
                        await _request(one, type="history", conversation_id=f"c{number}")
                        await _send(one, f"c{number}", tokens=1)
                    one.close()
                    await asyncio.sleep(SETTLE_S)
                    used = (await client.info("memory"))["used_memory"]
                    return Measurement(resident_bytes(pid), used)

                await look()  # the first one warms up
                before = await look()
                for number in range(scale.stored // EACH):
                    await _plant(client, copies, _owner(number), EACH)
                stored = await look()
                async with _live(server.port, scale):
                    live = await look()
    report.findings += _findings(scale, before, stored, live)
    return report


async def _template(client: Redis, scale: Scale) -> Dumps:
    """Have the product write one conversation, its journal compacted; return both keys' contents."""
    engine = ScriptedEngine(context_tokens=1_000_000)
    sessions = Sessions(client=client, engine=engine, policy=Policy(ttl_s=TTL_S, max_turns=10))
    chat = Chat(sessions, engine, Owner("anonymous", "template"), Recorder())
    async with sessions.running(alone=False):
        for number in range(scale.exchanges):
            question = f"Question {number}: what comes next, and why does it?"
            await chat.exchange(question, REPLY, client_msg_id=f"m{number}")
        await chat.wait_idle()
        for name in await client.keys("ms:compaction:*"):
            await client.zadd(name, dict.fromkeys(await client.zrange(name, 0, -1), 1))
        await Compaction(client, ttl_s=TTL_S, window_s=0).compact()
        chat.leave()
    dumped = [await client.dump(key) for key in chat.keys.pair()]
    assert dumped[0] is not None
    await client.delete(*chat.keys.pair())
    return dumped[0], dumped[1]


async def _plant(client: Redis, copies: Dumps, owner: Owner, count: int) -> None:
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
async def _live(port: int, scale: Scale) -> AsyncIterator[None]:
    """Follow so many conversations; every fourth one has a reply that is being written, the others have ended."""
    reading: list[asyncio.Task[None]] = []
    try:
        for first in range(0, scale.live, AT_ONCE):
            some = range(first, min(first + AT_ONCE, scale.live))
            opened = await asyncio.gather(*(_follow(port, number) for number in some))
            reading += [asyncio.create_task(_read(one)) for one in opened]
        yield
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _follow(port: int, number: int) -> MinimalWebSocket:
    one = await _greeted(port, _owner(number).client_id)
    await _request(one, type="history", conversation_id="c0")
    await _send(one, "c0", tokens=1 if number % WRITTEN else WORDS)
    return one


async def _read(one: MinimalWebSocket) -> None:
    try:
        while True:
            await one.get()
    finally:
        one.close()


async def _greeted(port: int, client_id: str) -> MinimalWebSocket:
    one = await MinimalWebSocket.connect(("127.0.0.1", port))
    await one.send_hello(client_id=client_id)
    return one


async def _send(one: MinimalWebSocket, conversation_id: str, *, tokens: int) -> None:
    message = {"conversation_id": conversation_id, "client_msg_id": f"at {now_ms()}", "content": "Go on."}
    answer = await _request(one, type="send", **message, params={"max_new_tokens": tokens})
    assert answer["type"] == "accepted", answer


async def _request(one: MinimalWebSocket, **frame: Any) -> dict[str, Any]:
    """Send a frame; return its answer."""
    await one.put(**frame, ref="asked")
    while (answer := await one.get()).get("ref") != "asked":
        pass
    return answer


def _findings(
    scale: Scale, before: Measurement, stored: Measurement, live: Measurement
) -> Iterator[Measured]:
    looks = {
        f"{scale.samples} stored": before,
        f"{scale.stored:,} stored": stored,
        f"{scale.live:,} of them live": live,
    }
    gateway_mb = {name: seen.gateway_bytes / 2**20 for name, seen in looks.items()}
    store_mb = {name: seen.store_bytes / 2**20 for name, seen in looks.items()}
    live_kb = (live.gateway_bytes - stored.gateway_bytes) / 1024 / scale.live
    stored_kb = (stored.store_bytes - before.store_bytes) / 1024 / scale.stored
    each = f"each conversation of {scale.exchanges} exchanges of {len(REPLY.split())} words"
    for label, value, unit, readings in (
        ("memory of the gateway", live.gateway_bytes / 2**20, "MB", gateway_mb),
        ("memory of the gateway: each live conversation with its socket", live_kb, "KB", {}),
        ("memory of Redis", live.store_bytes / 2**20, "MB", store_mb),
        (f"memory of Redis: {each}", stored_kb, "KB", {}),
    ):
        yield Measured(label=label, value=value, unit=unit, readings=readings)


if __name__ == "__main__":
    sys.exit(main())
