"""Sockets that stop reading, beside others that read: their cost, their effect on others, and how long they stay.

Each slow socket is another device of a client that reads. It asks for a long history, reads none of it, and stays
attached to a conversation whose reply is being written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from tests.bench.engine.report import Target
from tests.bench.statistics import percentile
from tests.chaos import gateway
from tests.chaos.memory import kernel_bytes, resident_bytes
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scale, Scenario
from tests.server_process import ServerProcess, serving

KB_EACH = Target(300.0, at_most=True)
TIMES_CALM = Target(1.3, at_most=True)
FREED_S = Target(60.0, at_most=True)
PACE_S = 0.02
WORDS = 50_000
PAGE = ("x" * 32_000,) * 6
"""Messages of the history: 192 KB, more than the kernel buffers for a peer that does not read."""
RECEIVE_BYTES = 8 * 1024
COME_AT_ONCE = 4
LIMIT_S = 90.0
LOOK_S = 0.25
LOOKS_AT_ONCE = 20


class _Seen(msgspec.Struct, frozen=True):
    """One load. `gaps_…` are seconds between texts: before, while slow sockets connect, beside them, and after."""

    gaps_before: list[float]
    gaps_meanwhile: list[float]
    gaps_beside: list[float]
    gaps_after: list[float]
    process_bytes: int
    kernel_bytes: int | None
    freed_s: list[float]
    left: int


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Connect the slow sockets, and wait until they are gone."""
    scale = scenario.scale
    script = gateway.Script(words=WORDS, pace_s=PACE_S, hurry=scale.hurry)
    roomy = {
        "MIDSTREAM_MAX_CLIENT_CONNECTIONS": str(scale.slow // scale.normal + 3),
        "MIDSTREAM_LOG_LEVEL": "warning",
        "MIDSTREAM_REPLY_TOKENS": str(WORDS),
    }
    with serving(scenario.folder, roomy, command=gateway.command(script)) as server:
        seen = asyncio.run(_observe(server, scale))
        server.kill()  # long replies are still on their way
    return tuple(_findings(seen, scale))


def _findings(seen: _Seen, scale: Scale) -> Iterator[Finding]:
    def p99_ms(gaps: list[float]) -> float:
        return (percentile(gaps, 0.99) or 0.0) * 1000

    parts = {"process": seen.process_bytes / 1024 / scale.slow}
    if seen.kernel_bytes is not None:
        parts["kernel"] = seen.kernel_bytes / 1024 / scale.slow
    yield Finding(
        part=Part.SLOW_READERS,
        label=f"{scale.slow} sockets that stopped reading: memory of each",
        value=sum(parts.values()),
        unit="KB",
        readings=parts,
        target=KB_EACH,
        note="" if seen.kernel_bytes is not None else "without the kernel's part: ss is not installed",
    )
    calm = p99_ms([*seen.gaps_before, *seen.gaps_after])
    yield Finding(
        part=Part.SLOW_READERS,
        label=f"p99 between texts of {scale.normal} readers beside them, times without them",
        value=p99_ms(seen.gaps_beside) / calm,
        readings={
            "ms without": calm,
            "ms beside": p99_ms(seen.gaps_beside),
            "ms while they come": p99_ms(seen.gaps_meanwhile),
        },
        target=TIMES_CALM,
    )
    yield Finding(
        part=Part.SLOW_READERS,
        label="the last of them freed",
        value=None if seen.left else max(seen.freed_s),
        unit="s",
        readings={"still there": float(seen.left)},
        target=FREED_S,
    )


async def _observe(server: ServerProcess, scale: Scale) -> _Seen:
    assert server.process is not None
    pid, loop = server.process.pid, asyncio.get_running_loop()
    arrivals: list[list[float]] = [[] for _ in range(scale.normal)]
    normal = [await _begin(server.port, client) for client in range(scale.normal)]
    reading = [asyncio.create_task(_read(*pair)) for pair in zip(normal, arrivals, strict=True)]
    await asyncio.sleep(scale.settle_s)

    started = loop.time()
    await asyncio.sleep(scale.calm_s)
    process, kernel = resident_bytes(pid), kernel_bytes(server.port)
    coming = loop.time()
    slow = await _come(server.port, scale)
    here = loop.time()
    await asyncio.sleep(scale.settle_s)
    process_after, kernel_after = resident_bytes(pid), kernel_bytes(server.port)
    freed = await _wait_freed(slow)
    gone = loop.time()
    await asyncio.sleep(scale.calm_s)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for one in normal:
        one.close()
    return _Seen(
        gaps_before=_gaps(arrivals, started, coming),
        gaps_meanwhile=_gaps(arrivals, coming, here),
        gaps_beside=_gaps(arrivals, here, gone),
        gaps_after=_gaps(arrivals, gone, loop.time()),
        process_bytes=process_after - process,
        kernel_bytes=None if kernel is None or kernel_after is None else kernel_after - kernel,
        freed_s=freed,
        left=len(slow) - len(freed),
    )


async def _begin(port: int, client: int) -> MinimalWebSocket:
    """Give a client a long history and an endless reply."""
    one = await MinimalWebSocket.connect(("127.0.0.1", port))
    await one.send_hello(client_id=f"client-{client}")
    for number, content in enumerate(PAGE):
        await one.put(type="send", client_msg_id=f"m{number}", content=content, params={"max_new_tokens": 1})
        while (await one.get())["type"] != "done":
            pass
    await one.put(type="send", client_msg_id="long", content="Go.", params={"max_new_tokens": WORDS})
    await one.get()
    return one


async def _read(one: MinimalWebSocket, arrivals: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        frame = await one.get()
        if frame["type"] == "delta":
            arrivals.append(loop.time())


async def _come(port: int, scale: Scale) -> list[tuple[MinimalWebSocket, float]]:
    """Open the slow sockets, a few at a time; return when each stopped reading."""
    at_once = asyncio.Semaphore(COME_AT_ONCE)

    async def one(number: int) -> tuple[MinimalWebSocket, float]:
        async with at_once:
            opened = await MinimalWebSocket.connect(("127.0.0.1", port), receive_buffer=RECEIVE_BYTES)
            await opened.send_hello(client_id=f"client-{number % scale.normal}")
            await opened.put(type="history")
            return opened, asyncio.get_running_loop().time()

    return await asyncio.gather(*(one(number) for number in range(scale.slow)))


async def _wait_freed(slow: list[tuple[MinimalWebSocket, float]]) -> list[float]:
    """Return the lifetime of each socket that the server ended within the limit."""
    loop, freed, left = asyncio.get_running_loop(), list[float](), slow
    end = loop.time() + LIMIT_S
    while left and loop.time() < end:
        await asyncio.sleep(LOOK_S)
        over = await _over(left)  # checked once: another check may find more
        now = loop.time()
        freed += [now - since for one, since in left if one in over]
        left = [(one, since) for one, since in left if one not in over]
    for one, _ in slow:
        one.close()
    return freed


async def _over(some: list[tuple[MinimalWebSocket, float]]) -> set[MinimalWebSocket]:
    """Return the sockets that are over. A few at a time: those that read must not wait for a thousand checks."""
    over = set()
    for place, (one, _) in enumerate(some):
        if one.is_over:
            over.add(one)
        if place % LOOKS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return over


def _gaps(arrivals: list[list[float]], begin: float, end: float) -> list[float]:
    return [
        later - earlier
        for stream in arrivals
        for earlier, later in pairwise(stream)
        if begin <= earlier and later <= end
    ]
