"""The cost of stored and live conversations: `python -m tests.bench.many_conversations`; a table, and JSON.

A Redis holds a hundred thousand conversations, ten thousand of one owner. A thousand are followed, every
fourth one with a reply that is being written. The same gateway is measured before that, too. The product writes one
conversation; the others are copies under their own names.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store.codec import Keys, now_ms
from sessions.store.journal import Compaction
from sessions.turn.policy import Policy
from tests.bench.engine.report import Failure, Measured
from tests.bench.engine.table import table
from tests.bench.machine import Machine, this_machine
from tests.bench.statistics import percentile
from tests.chaos import gateway
from tests.chaos.memory import resident_bytes
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.chaos.store_server import store_server
from tests.server_process import serving
from tests.sessions.chat_driver import Chat
from tests.sessions.recorder import Recorder

RESULTS = Path(__file__).parents[2] / "docs" / "bench" / "many.json"
PACKAGES = ("midstream", "uvicorn", "starlette", "websockets", "redis")
TTL_S = 30 * 24 * 3600
REPLY = "word " * 300
WORDS = 1_000
"""Words of a reply that is being written: enough for the whole measurement."""
WRITTEN = 4
"""One in so many live conversations has a reply that is being written."""
PACE_S = 0.25
"""Seconds between two texts of a reply: all replies together make a thousand texts a second."""
LISTED = "listed"
"""The owner with the longest list."""
PROBE = "probe"
"""The measured client: each of its messages goes to another one of its conversations."""
EACH = 10
"""Conversations of most owners."""
BATCH = 500
AT_ONCE = 20
SETTLE_S = 2.0

T = TypeVar("T")


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The size of everything."""

    stored: int
    listed: int
    live: int
    exchanges: int
    samples: int


FULL = Scale(stored=100_000, listed=10_000, live=1_000, exchanges=5, samples=300)
QUICK = Scale(stored=500, listed=100, live=10, exchanges=2, samples=5)


class Measurement(msgspec.Struct, frozen=True):
    """One measurement. `took_s`: by request, the seconds of each answer."""

    gateway_bytes: int
    store_bytes: int
    took_s: dict[str, list[float]]


class ManyReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result. `date` is an ISO 8601 day."""

    date: str
    machine: Machine
    scale: Scale
    findings: tuple[Measured, ...]
    failures: tuple[Failure, ...] = ()
    cuts: tuple[str, ...] = ()


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many_conversations", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of it, to see that it works")
    parser.add_argument(
        "--out", type=Path, help=f"file for results ({RESULTS.name} in docs/bench; with --quick: none)"
    )
    options = parser.parse_args()
    out = options.out or (None if options.quick else RESULTS)
    report = asyncio.run(measure(QUICK if options.quick else FULL))
    if report.machine.warning:
        print(report.machine.warning)
    print(table(report))
    if out:
        out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        print(f"Written: {out}")
    return 0


async def measure(scale: Scale) -> ManyReport:
    """Measure a gateway with an almost empty store, with many conversations, and with live ones too."""
    machine = this_machine(PACKAGES)
    script = gateway.Script(words=WORDS, pace_s=PACE_S)
    with tempfile.TemporaryDirectory(prefix="midstream-many-") as name:
        folder = Path(name)
        with store_server(folder / "store") as store:
            environ = {
                "MIDSTREAM_REDIS_URL": store.url,
                "MIDSTREAM_LOG_LEVEL": "warning",
                **gateway.UNHURRIED,
            }
            with serving(folder, environ, command=gateway.command(script)) as server:
                assert server.process is not None
                pid = server.process.pid
                async with Redis(port=store.port) as client:
                    copies = await _template(client, scale)
                    await _plant(client, copies, Owner("anonymous", PROBE), scale.samples)

                    async def look(lister: str = PROBE) -> Measurement:
                        await asyncio.sleep(SETTLE_S)
                        used = (await client.info("memory"))["used_memory"]
                        return Measurement(
                            resident_bytes(pid), used, await _times(server.port, scale, lister)
                        )

                    await look()  # the first one warms up
                    before = await look()
                    await _plant_all(client, copies, scale)
                    stored = await look(LISTED)
                    async with _live(server.port, scale):
                        live = await look(LISTED)
    return ManyReport(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        scale=scale,
        findings=tuple(_findings(scale, before, stored, live)),
    )


async def _template(client: Redis, scale: Scale) -> tuple[bytes, bytes | None]:
    """Have the product write one conversation, its journal compacted; return both keys' contents."""
    engine = ScriptedEngine(context_tokens=1_000_000)
    sessions = Sessions(client=client, engine=engine, policy=Policy(ttl_s=TTL_S, max_turns=10))
    chat = Chat(sessions, engine, Owner("anonymous", "template"), Recorder())
    async with sessions.running(alone=False):
        for number in range(scale.exchanges):
            await chat.exchange(
                f"Question {number}: what comes next, and why does it?", REPLY, client_msg_id=f"m{number}"
            )
        await chat.wait_idle()
        for name in await client.keys("ms:compaction:*"):
            await client.zadd(name, dict.fromkeys(await client.zrange(name, 0, -1), 1))
        await Compaction(client, ttl_s=TTL_S, window_s=0).compact()
        chat.leave()
    dumped = [await client.dump(key) for key in chat.keys.pair()]
    assert dumped[0] is not None
    await client.delete(*chat.keys.pair())
    return dumped[0], dumped[1]


async def _plant_all(client: Redis, copies: tuple[bytes, bytes | None], scale: Scale) -> None:
    await _plant(client, copies, Owner("anonymous", LISTED), scale.listed)
    for number in range((scale.stored - scale.listed) // EACH):
        await _plant(client, copies, _owner(number), EACH)


async def _plant(client: Redis, copies: tuple[bytes, bytes | None], owner: Owner, count: int) -> None:
    for first in range(0, count, BATCH):
        names = [f"c{number}" for number in range(first, min(first + BATCH, count))]
        pipe = client.pipeline(transaction=False)
        for name in names:
            for key, dumped in zip(Keys.of(owner, name).pair(), copies, strict=True):
                if dumped is not None:
                    pipe.restore(key, TTL_S * 1000, dumped)
        now = now_ms()
        pipe.zadd(
            f"ms:conversations:{{{owner}}}",
            {name: now + place for place, name in enumerate(names, first - count)},
        )
        await pipe.execute()


def _owner(number: int) -> Owner:
    return Owner("anonymous", f"owner-{number}")


@asynccontextmanager
async def _live(port: int, scale: Scale) -> AsyncIterator[None]:
    """Follow so many conversations; every fourth one has a reply that is being written, the others have ended."""
    async with AsyncExitStack() as stack:
        reading = await stack.enter_async_context(_tasks())
        for first in range(0, scale.live, AT_ONCE):
            some = range(first, min(first + AT_ONCE, scale.live))
            reading += [
                asyncio.create_task(_read(one))
                for one in await asyncio.gather(*(_follow(port, number) for number in some))
            ]
        yield


@asynccontextmanager
async def _tasks() -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(port: int, number: int) -> MinimalWebSocket:
    one = await MinimalWebSocket.connect(("127.0.0.1", port))
    await one.send_hello(client_id=_owner(number).client_id)
    await _request(one, type="history", conversation_id="c0")
    tokens = 1 if number % WRITTEN else WORDS
    message = {"conversation_id": "c0", "client_msg_id": "new", "content": "Go on."}
    answer = await _request(one, type="send", **message, params={"max_new_tokens": tokens})
    assert answer["type"] == "accepted", answer
    return one


async def _read(one: MinimalWebSocket) -> None:
    try:
        while True:
            await one.get()
    finally:
        one.close()


async def _times(port: int, scale: Scale, lister: str) -> dict[str, list[float]]:
    """Send each request so often, one after the other. `lister`: the owner of the list."""
    reader = await _greeted(port, lister)
    probe = await _greeted(port, PROBE)
    took: dict[str, list[float]] = {}

    async def timed(name: str, request: Awaitable[T]) -> T:
        started = asyncio.get_running_loop().time()
        answer = await request
        took.setdefault(name, []).append(asyncio.get_running_loop().time() - started)
        return answer

    for number in range(scale.samples):
        (await timed("hello", _greeted(port, PROBE))).close()
        await timed("conversations", _request(reader, type="conversations", limit=50))
        await timed("history", _request(probe, type="history", conversation_id=f"c{number}"))
        await timed("accepted", _send(probe, f"c{number}"))
    for one in (reader, probe):
        one.close()
    return took


async def _greeted(port: int, client_id: str) -> MinimalWebSocket:
    one = await MinimalWebSocket.connect(("127.0.0.1", port))
    await one.send_hello(client_id=client_id)
    return one


async def _send(one: MinimalWebSocket, conversation_id: str) -> dict[str, Any]:
    message = {"conversation_id": conversation_id, "client_msg_id": f"at {now_ms()}", "content": "Go on."}
    answer = await _request(one, type="send", **message, params={"max_new_tokens": 1})
    assert answer["type"] == "accepted", answer
    return answer


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
    yield Measured(
        label="memory of the gateway", value=live.gateway_bytes / 2**20, unit="MB", readings=gateway_mb
    )
    live_kb = (live.gateway_bytes - stored.gateway_bytes) / 1024 / scale.live
    yield Measured(
        label="memory of the gateway: each live conversation with its socket", value=live_kb, unit="KB"
    )
    store_mb = {name: seen.store_bytes / 2**20 for name, seen in looks.items()}
    yield Measured(label="memory of Redis", value=live.store_bytes / 2**20, unit="MB", readings=store_mb)
    stored_kb = (stored.store_bytes - before.store_bytes) / 1024 / scale.stored
    label = f"memory of Redis: each conversation of {scale.exchanges} exchanges of {len(REPLY.split())} words"
    yield Measured(label=label, value=stored_kb, unit="KB")
    for name in live.took_s:
        for share, title in ((0.5, "p50"), (0.99, "p99")):
            readings = {
                look: (percentile(seen.took_s[name], share) or 0.0) * 1000 for look, seen in looks.items()
            }
            yield Measured(
                label=f"{name}: {title}", value=list(readings.values())[-1], unit="ms", readings=readings
            )


if __name__ == "__main__":
    sys.exit(main())
