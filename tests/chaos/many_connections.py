"""Many connections to one gateway: their deltas, their memory while they idle, all at once, and readers that stop reading.

Deltas and idle connections are compared with a bare server's (`tests/chaos/baseline_server.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, pairwise

import msgspec

from tests.bench.report import Measured, Target, at_most, percentile_ms
from tests.chaos import baseline_server, gateway
from tests.chaos.memory import kernel_bytes, resident_bytes
from tests.chaos.minimal_websocket import TEXT, Dropped, MinimalWebSocket, Refused
from tests.chaos.scenario import Scale, Scenario
from tests.server_process import ServerProcess, serving

SHARE = Target(0.7)
READERS = (1, 16)
"""Sockets on one conversation: a single client, and one with many devices."""
WARM_SHARE = 0.2
WORDS = 50_000
IDLE_TIMES = at_most(1.5)
AT_ONCE = 100
WARM = 50
"""Connections that are opened and closed first: memory that they cause once is not counted."""
WITHIN_S = 5.0
SOURCES = tuple(f"127.0.0.{last}" for last in range(2, 6))
"""Loopback addresses to connect from, so that no port is used twice."""
TICK_S = 0.02
KB_EACH, TIMES_CALM, FREED_S = at_most(300.0), at_most(1.3), at_most(60.0)
PACE_S = 0.02
PAGE = ("x" * 32_000,) * 6
"""Messages of the history: 192 KB, more than the kernel buffers for a peer that does not read."""
RECEIVE_BYTES = 8 * 1024
COME_AT_ONCE = 4
LIMIT_S = 90.0
LOOK_S = 0.25
LOOKS_AT_ONCE = 20


def _clock_of(pid: int) -> int:
    """Return the id of a process's CPU clock, as Linux's clock_getcpuclockid(3) forms it."""
    return (~pid << 3) | 2


class _Seen(msgspec.Struct):
    type: str
    tokens: int = 0


_decode = msgspec.json.Decoder(_Seen).decode


def fan_out(scenario: Scenario) -> Sequence[Measured]:
    """Compare the deltas that a gateway sends with a bare app that sends the same frames; ours with its journal too.

    By the processor time of a delta: seconds mean little on a machine that clients and other work share.
    """
    script = gateway.Script(words=WORDS, word=baseline_server.WORD)
    servers = {
        "bare": baseline_server.command("deltas"),
        "ours": gateway.command(msgspec.structs.replace(script, journal=False)),
        "with journal": gateway.command(script),
    }
    environ = {"MIDSTREAM_LOG_LEVEL": "warning"}
    found = []
    for readers in READERS:
        cpu_us, per_s, tokens = {}, {}, []
        for name, command in servers.items():
            (folder := scenario.folder / f"{name}-{readers}").mkdir()
            with serving(folder, environ, command=command) as server:
                deltas, each, wall_s, cpu_s = asyncio.run(_listen(server, scenario.scale, readers))
                server.kill()  # long replies are still on their way
            cpu_us[name], per_s[name] = cpu_s / max(1, deltas) * 1e6, deltas / wall_s
            tokens.append(f"{name} {each:.2f}")
        label = f"deltas to {readers} reader{'s' if readers > 1 else ''} of a conversation"
        shares = {name: cpu_us["bare"] / value for name, value in cpu_us.items()}
        note, share = (
            f"tokens a delta: {', '.join(tokens)}",
            f"{label}: per processor second, share of a bare app's",
        )
        found += [
            Measured(label=share, value=shares["ours"], readings=shares, target=SHARE, note=note),
            Measured(label=f"{label}: processor time", value=cpu_us["ours"], unit="µs", readings=cpu_us),
            Measured(label=f"{label}: in a second", value=per_s["ours"], unit="deltas/s", readings=per_s),
        ]
    return found


async def _listen(server: ServerProcess, scale: Scale, readers: int) -> tuple[int, float, float, float]:
    """Stream to all sockets; once all stream, return deltas, tokens in each, and seconds of wall and processor for a while."""
    assert server.process is not None
    tally, clock = [0, 0], _clock_of(server.process.pid)

    async def read(one: MinimalWebSocket) -> None:
        while True:
            opcode, payload = await one.read()
            if opcode == TEXT and (seen := _decode(payload)).type == "delta":
                tally[0] += 1
                tally[1] += seen.tokens

    sockets = [await MinimalWebSocket.connect(("127.0.0.1", server.port)) for _ in range(scale.streams)]
    for number, one in enumerate(sockets):
        await one.send_hello(client_id=f"reader-{number // readers}")
        if number % readers:  # follow the reply that another socket of the client asked for
            await one.put(type="history")
        else:
            await one.put(type="send", client_msg_id="m", content="Go.", params={"max_new_tokens": WORDS})
            await one.get()
    reading = [asyncio.create_task(read(one)) for one in sockets]
    await asyncio.sleep(scale.streams_s * WARM_SHARE)
    first, cpu, started = [*tally], time.clock_gettime(clock), time.perf_counter()
    await asyncio.sleep(scale.streams_s)
    cpu_s, wall_s = time.clock_gettime(clock) - cpu, time.perf_counter() - started
    deltas, tokens = (now - then for now, then in zip(tally, first, strict=True))
    await _leave(reading, sockets)
    return deltas, tokens / max(1, deltas), wall_s, cpu_s


async def _leave(reading: Sequence[asyncio.Task[None]], sockets: Sequence[MinimalWebSocket]) -> None:
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for one in sockets:
        one.close()


def idle(scenario: Scenario) -> Sequence[Measured]:
    """Measure the memory of an idle connection after its hello, compared with a bare server's."""
    scale = scenario.scale
    roomy = {"MIDSTREAM_MAX_CONNECTIONS": str(2 * (scale.idle + WARM))}
    cost = {}
    for name, command in (
        ("bare", baseline_server.command("idle")),
        ("ours", gateway.command(gateway.Script())),
    ):
        (folder := scenario.folder / name).mkdir()
        with serving(folder, roomy, command=command) as server:
            cost[name] = asyncio.run(_idle_kb(server, scale))
    label = f"{scale.idle} idle connections: memory of each, times a bare server's"
    ratio = cost["ours"] / cost["bare"]
    return [
        Measured(label=label, value=ratio, readings=cost, target=IDLE_TIMES),
        Measured(label="memory of an idle connection", value=cost["ours"], unit="KB"),
    ]


async def _idle_kb(server: ServerProcess, scale: Scale) -> float:
    """Return the KB of memory per connection."""
    assert server.process is not None

    async def opened() -> MinimalWebSocket:
        one = await MinimalWebSocket.connect(("127.0.0.1", server.port))
        await one.send_hello()
        return one

    for one in await asyncio.gather(*(opened() for _ in range(WARM))):
        one.close()
    await asyncio.sleep(scale.settle_s)
    before, sockets = resident_bytes(server.process.pid), list[MinimalWebSocket]()
    for _ in range(0, scale.idle, AT_ONCE):
        sockets += await asyncio.gather(*(opened() for _ in range(AT_ONCE)))
    await asyncio.sleep(scale.settle_s)
    after = resident_bytes(server.process.pid)
    for one in sockets:
        await one.send(b"{}")  # a server that had dropped it would reset the connection
        one.close()
    return (after - before) / 1024 / len(sockets)


def storm(scenario: Scenario) -> Sequence[Measured]:
    """Have clients connect all at once, as after a restart: each is served or refused with a reason, and none hangs."""
    scale = scenario.scale
    with serving(scenario.folder, command=gateway.command(gateway.Script())) as server:
        outcomes = asyncio.run(_storm(server.port, scale))
    served = [outcome for outcome in outcomes if isinstance(outcome, float)]
    refused = sum(isinstance(outcome, Refused) for outcome in outcomes)
    hung = float(len(outcomes) - len(served) - refused)
    readings = {"served": float(len(served)), "refused with a reason": float(refused)}
    label = f"{scale.storm_per_s} connects/s: neither served nor refused in {WITHIN_S:g} s"
    p50 = {"p50": percentile_ms(served, 0.5)}
    slowest = percentile_ms(served, 1.0) if served else None
    return [
        Measured(label=label, value=hung, readings=readings, target=at_most(0)),
        Measured(label="from connect to ready, slowest", value=slowest, unit="ms", readings=p50),
    ]


async def _storm(port: int, scale: Scale) -> list[float | Exception | None]:
    """Connect at a steady pace, whether the server keeps up or not: seconds until `ready`, or what came instead, if anything."""
    loop, sources, opened = asyncio.get_running_loop(), cycle(SOURCES), list[MinimalWebSocket]()

    async def come(source: str) -> float | Exception | None:
        started = loop.time()
        try:
            async with asyncio.timeout(WITHIN_S):
                one = await MinimalWebSocket.connect(("127.0.0.1", port), source=source)
                opened.append(one)
                await one.send_hello()
        except TimeoutError:
            return None
        except (Refused, Dropped, OSError) as error:
            return error
        return loop.time() - started

    coming: list[asyncio.Task[float | Exception | None]] = []
    started, total = loop.time(), int(scale.storm_per_s * scale.storm_s)
    while len(coming) < total:
        due = min(total, int((loop.time() - started) * scale.storm_per_s) + 1)
        coming += [asyncio.create_task(come(next(sources))) for _ in range(due - len(coming))]
        await asyncio.sleep(TICK_S)
    outcomes = await asyncio.gather(*coming)
    for one in opened:
        one.close()
    return outcomes


def slow_readers(scenario: Scenario) -> Sequence[Measured]:
    """Have sockets stop reading beside others that read: their cost, their effect on others, and how long they stay.

    Each slow socket is another device of a client that reads. It asks for a long history, reads none of it, and stays
    attached to a conversation whose reply is being written.
    """
    scale = scenario.scale
    script = gateway.Script(words=WORDS, pace_s=PACE_S, hurry=scale.hurry)
    roomy = {
        "MIDSTREAM_MAX_CLIENT_CONNECTIONS": str(scale.slow // scale.normal + 3),
        "MIDSTREAM_LOG_LEVEL": "warning",
    }
    with serving(scenario.folder, roomy, command=gateway.command(script)) as server:
        found = asyncio.run(_slow_readers(server, scale))
        server.kill()  # long replies are still on their way
    return found


async def _slow_readers(server: ServerProcess, scale: Scale) -> list[Measured]:
    assert server.process is not None
    pid, port, now = server.process.pid, server.port, asyncio.get_running_loop().time
    arrivals: list[list[float]] = [[] for _ in range(scale.normal)]
    normal = [await _begin(port, client) for client in range(scale.normal)]
    reading = [asyncio.create_task(_note(*pair, now)) for pair in zip(normal, arrivals, strict=True)]
    await asyncio.sleep(scale.settle_s)
    started = now()
    await asyncio.sleep(scale.calm_s)
    process, kernel, coming = resident_bytes(pid), kernel_bytes(port), now()
    slow = await _come(port, scale)
    here = now()
    await asyncio.sleep(scale.settle_s)
    kb = {"process": (resident_bytes(pid) - process) / 1024 / scale.slow}
    if kernel is not None and (kernel_after := kernel_bytes(port)) is not None:
        kb["kernel"] = (kernel_after - kernel) / 1024 / scale.slow
    freed = await _freed(slow)
    gone = now()
    await asyncio.sleep(scale.calm_s)
    end = now()
    await _leave(reading, normal)
    gaps = partial(_gaps, arrivals)
    calm = percentile_ms([*gaps(started, coming), *gaps(gone, end)], 0.99)
    beside = percentile_ms(gaps(here, gone), 0.99)
    meanwhile = percentile_ms(gaps(coming, here), 0.99)
    slow_label = f"{scale.slow} sockets that stopped reading: memory of each"
    note = "" if "kernel" in kb else "without the kernel's part: ss is not installed"
    gap_label = f"p99 between texts of {scale.normal} readers beside them, times without them"
    ms = {"ms without": calm, "ms beside": beside, "ms while they come": meanwhile}
    left = len(slow) - len(freed)
    freed_s, still_there = None if left else max(freed), {"still there": float(left)}
    return [
        Measured(label=slow_label, value=sum(kb.values()), unit="KB", readings=kb, target=KB_EACH, note=note),
        Measured(label=gap_label, value=beside / calm, readings=ms, target=TIMES_CALM),
        Measured(
            label="the last of them freed", value=freed_s, unit="s", readings=still_there, target=FREED_S
        ),
    ]


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


async def _note(one: MinimalWebSocket, arrivals: list[float], now: Callable[[], float]) -> None:
    while True:
        if (await one.get())["type"] == "delta":
            arrivals.append(now())


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


async def _freed(slow: list[tuple[MinimalWebSocket, float]]) -> list[float]:
    """Return the lifetime of each socket that the server ended within the limit."""
    loop, freed, left = asyncio.get_running_loop(), list[float](), slow
    end = loop.time() + LIMIT_S
    while left and loop.time() < end:
        await asyncio.sleep(LOOK_S)
        still = []
        for place, (one, since) in enumerate(left):
            if one.is_over:
                freed.append(loop.time() - since)
            else:
                still.append((one, since))
            if place % LOOKS_AT_ONCE == 0:  # those that read must not wait for a thousand checks
                await asyncio.sleep(0)
        left = still
    for one, _ in slow:
        one.close()
    return freed


def _gaps(arrivals: list[list[float]], begin: float, end: float) -> list[float]:
    pairs = (pair for stream in arrivals for pair in pairwise(stream))
    return [later - earlier for earlier, later in pairs if begin <= earlier and later <= end]
