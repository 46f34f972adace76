"""What it costs that a message is on the disk before it is acknowledged: `python -m tests.bench.durability`; a table, and JSON.

Gateways with scripted engines and embedded stores of their own, one for each way to be durable, all started first. Then the same
clients talk to one after the other, in rounds. Each way is compared with `memory` of the same round, since the
machine's speed may vary: figures are medians of the rounds' differences. Disks of other speeds are played by syncs that take
longer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec

from tests.bench.clients import ServerApi
from tests.bench.load_generator import Job, do
from tests.bench.report import Measured, Report, Target, at_most, percentile_ms, run_lab, say
from tests.chaos import gateway
from tests.faulty_disk import disk
from tests.server_process import serving

LIMIT_S = 90.0
MEMORY, DISK = "memory", "disk"
SCRIPT = gateway.Script(words=20, pace_s=0.01)
LATER_MS, SHARE = 20.0, 0.9
"""Targets, for 32 clients on this disk: milliseconds by which `accepted` may be later (p95), and the share of messages kept."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The size of everything. `syncs_ms`: milliseconds that a sync takes longer than this disk's; `replies`: of each client."""

    clients: tuple[int, ...] = (1, 32)
    syncs_ms: tuple[float, ...] = (0, 5, 20)
    rounds: int = 5
    replies: int = 16


QUICK = Scale(clients=(1, 2), syncs_ms=(0,), rounds=1, replies=1)


class LoadResult(NamedTuple):
    """What clients saw of one service in one round: seconds from each message to its `accepted`, and messages per second."""

    accepted: list[float]
    rate: float


def measure(scale: Scale) -> Report:
    """Measure both ways, on each disk."""
    report = Report(details={"scale": scale})
    for sync_ms in scale.syncs_ms:
        say(f"a sync takes {sync_ms:g} ms longer")
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
        urls = {}
        for way in (MEMORY, DISK):
            (own := folder / way).mkdir()
            durability = {"MIDSTREAM_STORE_DURABILITY": way}
            urls[way] = stack.enter_context(
                serving(own, environ | durability, command=gateway.command(SCRIPT))
            ).url
        for number in range(-1, scale.rounds):  # the first one warms up
            for clients in scale.clients:
                for way in list(urls)[:: 1 if number % 2 else -1]:
                    result = _run_clients(urls[way], clients, scale.replies)
                    if number >= 0:
                        seen[clients][way].append(result)
    return seen


def _run_clients(url: str, clients: int, replies: int) -> LoadResult:
    """Have clients send so many messages, each the next one once its reply has ended."""
    job = Job(
        api=ServerApi.WEBSOCKET, url=url, model="", clients=clients, replies=replies, max_new_tokens=SCRIPT.words,
        limit_s=LIMIT_S,
    )  # fmt: skip
    seen = asyncio.run(do(job)).replies
    took_s = max(one.ended for one in seen) - min(one.sent for one in seen)
    return LoadResult([one.accepted - one.sent for one in seen], len(seen) / took_s)


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
    rates = {way: [one.rate for one in some] for way, some in seen.items()}
    yield Measured(
        label=f"{who}: messages/s, share with disk",
        value=median(b / a for a, b in zip(rates[MEMORY], rates[DISK], strict=True)),
        readings={way: median(rate) for way, rate in rates.items()},
        target=Target(SHARE) if has_target else None,
    )


def main(options: argparse.Namespace) -> Report:
    """Measure."""
    return measure(QUICK if options.quick else Scale())


if __name__ == "__main__":
    sys.exit(run_lab("tests.bench.durability", __doc__, main))
