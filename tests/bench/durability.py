"""What it costs that a message is on the disk before it is acknowledged: `python -m tests.bench.durability`; a table, and JSON.

Gateways with scripted engines and embedded stores of their own, one for each way to be durable, all started first. Then the same
clients talk to one after the other for a few seconds, in rounds. Each way is compared with `memory` of the same round, since the
machine's speed may vary: figures are medians of the rounds' differences. Disks of other speeds are played by syncs that take
longer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import msgspec

from tests.bench.report import Measured, Report, Target, at_most, percentile_ms
from tests.chaos import gateway
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.faulty_disk import disk
from tests.server_process import serving

MEMORY, DISK = "memory", "disk"
SCRIPT = gateway.Script(words=20, pace_s=0.01)
LATER_MS, SHARE = 20.0, 0.9
"""Targets, for 32 clients on this disk: milliseconds by which `accepted` may be later (p95), and the share of messages kept."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The size of everything. `syncs_ms`: milliseconds that a sync takes longer than this disk's."""

    clients: tuple[int, ...] = (1, 32)
    syncs_ms: tuple[float, ...] = (0, 5, 20)
    rounds: int = 7
    seconds: float = 4


QUICK = Scale(clients=(1, 2), syncs_ms=(0,), rounds=1, seconds=0.3)


class LoadResult(msgspec.Struct):
    """What clients saw of one service in one round."""

    accepted: list[float] = []
    """Seconds from each message to its `accepted`."""
    ended: int = 0
    took_s: float = 0.0


def main() -> int:
    """Measure, print, write; return 0 if every target is met."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.durability", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of it, to see that it works")
    parser.add_argument("--rounds", type=int, default=Scale().rounds)
    parser.add_argument(
        "--sync-ms", type=float, nargs="+", default=Scale().syncs_ms, help="how much longer a sync takes"
    )
    parser.add_argument("--out", type=Path, help="file for results")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale(rounds=options.rounds, syncs_ms=tuple(options.sync_ms))
    return measure(scale).conclude(options.out)


def measure(scale: Scale) -> Report:
    """Measure both ways, on each disk."""
    report = Report(details={"scale": scale})
    for sync_ms in scale.syncs_ms:
        print(f"a sync takes {sync_ms:g} ms longer", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="midstream-durability-") as name:
            seen = _observed(scale, Path(name), sync_ms / 1000)
        for clients in scale.clients:
            report.findings += _findings(scale, sync_ms, clients, seen[clients])
    return report


def _observed(scale: Scale, folder: Path, sync_s: float) -> dict[int, dict[str, list[LoadResult]]]:
    """Return what each number of clients saw of each way, round by round."""
    environ = disk(folder, sync_s=sync_s) | gateway.UNHURRIED
    environ |= {"MIDSTREAM_LOG_LEVEL": "warning", "MIDSTREAM_MAX_CLIENT_CONNECTIONS": "1000"}
    seen: dict[int, dict[str, list[LoadResult]]] = {count: {MEMORY: [], DISK: []} for count in scale.clients}
    with ExitStack() as stack:
        ports = {}
        for way in (MEMORY, DISK):
            (own := folder / way).mkdir()
            durability = {"MIDSTREAM_STORE_DURABILITY": way}
            ports[way] = stack.enter_context(
                serving(own, environ | durability, command=gateway.command(SCRIPT))
            ).port
        for number in range(-1, scale.rounds):  # the first one warms up
            for clients in scale.clients:
                for way in list(ports)[:: 1 if number % 2 else -1]:
                    result = asyncio.run(_run_clients(ports[way], clients, scale.seconds))
                    if number >= 0:
                        seen[clients][way].append(result)
    return seen


async def _run_clients(port: int, clients: int, seconds: float) -> LoadResult:
    """Have clients send messages for so long, each the next one once its reply has ended."""
    loop, result = asyncio.get_running_loop(), LoadResult()
    sockets = [await MinimalWebSocket.connect(("127.0.0.1", port)) for _ in range(clients)]
    begun = loop.time()
    try:
        await asyncio.gather(*(_client(one, begun + seconds, result) for one in sockets))
    finally:
        for one in sockets:
            one.close()
    result.took_s = loop.time() - begun
    return result


async def _client(one: MinimalWebSocket, end: float, result: LoadResult) -> None:
    loop, name, number = asyncio.get_running_loop(), uuid.uuid4().hex, 0
    await one.send_hello(client_id=f"bench-{name}")
    params = {"max_new_tokens": SCRIPT.words}
    while number == 0 or loop.time() < end:
        number += 1
        sent = loop.time()
        message = {"conversation_id": name, "client_msg_id": f"m{number}", "content": "Count from 1 to 500."}
        await one.put(type="send", **message, params=params)
        while (frame := await one.get())["type"] != "done":
            assert frame["type"] != "error", frame
            if frame["type"] == "accepted":
                result.accepted.append(loop.time() - sent)
        result.ended += 1


def _findings(
    scale: Scale, sync_ms: float, clients: int, seen: dict[str, list[LoadResult]]
) -> Iterator[Measured]:
    who = f"{clients} client{'s' * (clients > 1)}, a sync {sync_ms:g} ms longer"
    has_target = sync_ms == 0 and clients == max(scale.clients) and scale != QUICK
    for share, title in ((0.5, "p50"), (0.95, "p95")):
        ms = {way: [percentile_ms(one.accepted, share) for one in some] for way, some in seen.items()}
        yield Measured(
            label=f"{who}: accepted {title}, later with disk",
            value=median(b - a for a, b in zip(ms[MEMORY], ms[DISK], strict=True)),
            unit="ms",
            readings={way: median(each) for way, each in ms.items()},
            target=at_most(LATER_MS) if has_target and share > 0.5 else None,
        )
    rates = {way: [one.ended / one.took_s for one in some] for way, some in seen.items()}
    yield Measured(
        label=f"{who}: messages/s, share with disk",
        value=median(b / a for a, b in zip(rates[MEMORY], rates[DISK], strict=True)),
        readings={way: median(rate) for way, rate in rates.items()},
        target=Target(SHARE) if has_target else None,
    )


if __name__ == "__main__":
    sys.exit(main())
