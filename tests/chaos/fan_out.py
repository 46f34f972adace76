"""Deltas that a gateway process sends, compared with a bare Starlette app that sends the same frames.

The comparison uses the processor time of a delta: seconds mean little on a machine that clients and other work share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tests.bench.engine.report import Target
from tests.bench.idle_detection import clock_of
from tests.chaos import baseline_server, gateway
from tests.chaos.minimal_websocket import TEXT, MinimalWebSocket
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scale, Scenario
from tests.server_process import serving

SHARE = Target(0.7)
WARM_SHARE = 0.2
WORDS = 50_000
READERS = (1, 16)
"""Sockets on one conversation: a single client, and one with many devices."""


class Rate(msgspec.Struct, frozen=True):
    """Figures of one server: deltas and tokens that clients got, in `seconds`, and the server's processor time."""

    deltas: int
    tokens: int
    wall_s: float
    cpu_s: float

    @property
    def cpu_us(self) -> float:
        """Processor time of a delta, in microseconds."""
        return self.cpu_s / max(1, self.deltas) * 1e6

    @property
    def tokens_per_delta(self) -> float:
        """Tokens in a delta; more than one if the server merged deltas."""
        return self.tokens / max(1, self.deltas)


class _Seen(msgspec.Struct):
    type: str
    tokens: int = 0


_decode = msgspec.json.Decoder(_Seen).decode


def measure(scenario: Scenario) -> Sequence[Finding]:
    """Measure both servers, and ours with its journal too."""
    servers = {
        "bare": baseline_server.command("deltas"),
        "ours": gateway.command(gateway.Script(words=WORDS, word=baseline_server.WORD, journal=False)),
        "with journal": gateway.command(gateway.Script(words=WORDS, word=baseline_server.WORD)),
    }
    return tuple(
        finding
        for readers in READERS
        for finding in _findings(
            readers,
            {
                name: _rate(scenario.folder / f"{name}-{readers}", command, scenario.scale, readers)
                for name, command in servers.items()
            },
        )
    )


def _findings(readers: int, rates: dict[str, Rate]) -> Iterator[Finding]:
    label = f"deltas to {readers} reader{'s' if readers > 1 else ''} of a conversation"
    merged = ", ".join(f"{name} {rate.tokens_per_delta:.2f}" for name, rate in rates.items())
    yield Finding(
        part=Part.FAN_OUT,
        label=f"{label}: per processor second, share of a bare app's",
        value=rates["bare"].cpu_us / rates["ours"].cpu_us,
        readings={name: rates["bare"].cpu_us / rate.cpu_us for name, rate in rates.items()},
        target=SHARE,
        note=f"tokens a delta: {merged}",
    )
    yield Finding(
        part=Part.FAN_OUT,
        label=f"{label}: processor time of each",
        value=rates["ours"].cpu_us,
        unit="µs",
        readings={name: rate.cpu_us for name, rate in rates.items()},
    )
    yield Finding(
        part=Part.FAN_OUT,
        label=f"{label}: in a second",
        value=rates["ours"].deltas / rates["ours"].wall_s,
        unit="deltas/s",
        readings={name: rate.deltas / rate.wall_s for name, rate in rates.items()},
    )


def _rate(folder: Path, command: tuple[str, ...], scale: Scale, readers: int) -> Rate:
    folder.mkdir()
    with serving(
        folder, {"MIDSTREAM_LOG_LEVEL": "warning", "MIDSTREAM_REPLY_TOKENS": str(WORDS)}, command=command
    ) as server:
        assert server.process is not None
        rate = asyncio.run(_listen(server.port, server.process.pid, scale, readers))
        server.kill()  # long replies are still on their way
    return rate


async def _listen(port: int, pid: int, scale: Scale, readers: int) -> Rate:
    """Stream to all sockets, and count the frames for a while once all of them stream."""
    tally = _Tally()
    sockets = [await MinimalWebSocket.connect(("127.0.0.1", port)) for _ in range(scale.streams)]
    for number, one in enumerate(sockets):
        await _begin(one, number // readers, begins=number % readers == 0)
    reading = [asyncio.create_task(_read(one, tally)) for one in sockets]
    await asyncio.sleep(scale.streams_s * WARM_SHARE)
    first, cpu, started = tally.copy(), time.clock_gettime(clock_of(pid)), time.perf_counter()
    await asyncio.sleep(scale.streams_s)
    cpu_s, wall_s = time.clock_gettime(clock_of(pid)) - cpu, time.perf_counter() - started
    rate = Rate(tally.deltas - first.deltas, tally.tokens - first.tokens, wall_s, cpu_s)
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for one in sockets:
        one.close()
    return rate


class _Tally(msgspec.Struct):
    deltas: int = 0
    tokens: int = 0

    def copy(self) -> _Tally:
        return _Tally(self.deltas, self.tokens)


async def _begin(one: MinimalWebSocket, client: int, *, begins: bool) -> None:
    """Say hello; ask for a long reply, or follow the one that another socket of the client asked for."""
    await one.send_hello(client_id=f"reader-{client}")
    if begins:
        await one.put(type="send", client_msg_id="m", content="Go.", params={"max_new_tokens": WORDS})
        await one.get()
    else:
        await one.put(type="history")


async def _read(one: MinimalWebSocket, tally: _Tally) -> None:
    while True:
        opcode, payload = await one.read()
        if opcode == TEXT and (seen := _decode(payload)).type == "delta":
            tally.deltas += 1
            tally.tokens += seen.tokens
