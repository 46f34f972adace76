"""`make bench-page`: every budget of the page in one table, each with its target, and JSON.

Visits over a slow line, long replies that stream, a conversation of ten thousand messages, one of a thousand turns, and the
rules of axe in each state. A real Chromium shows the page. Over the line it visits the real service: 1.6 Mbit/s, a round trip
of 150 ms; Chromium emulates it, and what it leaves out, the frames of a socket, is delayed here. A scripted engine answers,
so that no model is waited for. The first visitor after the start is not counted: for that one the files are compressed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import msgspec
from playwright.async_api import Browser

from tests.bench.engine.report import Failure, Measured
from tests.bench.machine import this_machine
from tests.bench.page import accessibility, long_conversation, memory, rendering
from tests.bench.page.page_loads import chromium, visited
from tests.bench.page.records import NetworkProfile, PageReport, Round, encode
from tests.bench.page.statistics import findings
from tests.bench.page.table import table
from tests.browser.page_states import axe_script
from tests.chaos import gateway
from tests.clients.environments import NotInstallable
from tests.server_process import ServerProcess, serving

RESULTS = Path(__file__).parents[3] / "docs" / "bench" / "page.json"
PACKAGES = ("midstream", "uvicorn", "starlette", "brotli", "playwright")
SLOW = NetworkProfile(down_kbit=1600, up_kbit=750, round_trip_ms=150)


class Part(StrEnum):
    """The parts, as `--only` names them."""

    VISITS = "visits"
    STREAMING = "streaming"
    LONG = "long"
    TALK = "talk"
    RULES = "rules"


class Extent(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the measurements."""

    visitors: int = 7
    rounds: int = 5
    messages: int = long_conversation.MESSAGES
    turns: int = memory.TURNS
    replies: tuple[rendering.Kind, ...] = tuple(rendering.kinds())


QUICK = Extent(visitors=1, rounds=1, messages=400, turns=10, replies=(rendering.FEW_LINES,))
"""An extent that shows that everything works, without figures."""


def main() -> int:
    """Measure, print, write; return 1 if a target is missed, or something could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a little of all, to see that it works")
    parser.add_argument("--only", nargs="+", type=Part, choices=Part, default=tuple(Part), metavar="PART")
    parser.add_argument("--out", type=Path, help="file for results (docs/bench/page.json; of a part: none)")
    options = parser.parse_args()
    report = asyncio.run(measure(QUICK if options.quick else Extent(), options.only))
    if report.machine.warning:
        print(report.machine.warning)
    print(table(report))
    whole = not options.quick and set(options.only) == set(Part)
    out = options.out or (RESULTS if whole else None)
    if out:
        out.write_bytes(encode(report))
        print(f"Written: {out}")
    return 1 if report.failures or any(one.met is False for one in report.findings) else 0


async def measure(extent: Extent, parts: Sequence[Part] = tuple(Part)) -> PageReport:
    """Measure some parts, one after the other."""
    machine = this_machine(PACKAGES)
    rounds: tuple[Round, ...] = ()
    found: list[Measured] = []
    failures: list[Failure] = []
    async with chromium() as browser:
        for part in Part:
            if part not in parts:
                continue
            if part is Part.VISITS:
                rounds = await _visits(browser, extent.visitors)
                found += findings(rounds)
                continue
            try:
                found += await _rows(browser, part, extent)
            except NotInstallable as why:
                failures.append(Failure(part, str(why)))
    return PageReport(
        date=datetime.now(UTC).date().isoformat(),
        command="make bench-page",
        machine=machine,
        line=SLOW,
        findings=tuple(found),
        rounds=rounds,
        failures=tuple(failures),
    )


async def _visits(browser: Browser, visitors: int) -> tuple[Round, ...]:
    """Have so many visitors come, one after the other."""
    with _service(gateway.Script(words=40, pace_s=0.005)) as server:
        made = [await visited(browser, server.url, SLOW) for _ in range(visitors + 1)]
    return tuple(made[1:])


async def _rows(browser: Browser, part: Part, extent: Extent) -> list[Measured]:
    match part:
        case Part.STREAMING:
            return await rendering.rows(browser, rounds=extent.rounds, replies=extent.replies)
        case Part.LONG:
            return await long_conversation.rows(browser, rounds=extent.rounds, messages=extent.messages)
        case Part.TALK:
            with _service(gateway.Script(words=40, pace_s=0.001)) as server:
                return await memory.rows(browser, server.url, turns=extent.turns)
        case _:
            return await accessibility.rows(browser, axe_script())


@contextmanager
def _service(script: gateway.Script) -> Iterator[ServerProcess]:
    """The real service over a scripted engine."""
    with (
        tempfile.TemporaryDirectory(prefix="midstream-page-") as name,
        serving(Path(name), gateway.UNHURRIED, command=gateway.command(script)) as server,
    ):
        yield server


if __name__ == "__main__":
    sys.exit(main())
