"""`make bench-page`: how much of the page comes over a slow line, and how soon it can be used; a table with targets, and JSON.

A real Chromium visits the real service over a line of 1.6 Mbit/s whose round trip takes 150 ms. Chromium emulates it; what
it leaves out, the frames of a socket, is delayed here. A scripted engine answers, so that no model is waited for. The first
visitor after the start is not counted: for that one the files are compressed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.engine.table import table
from tests.bench.machine import this_machine
from tests.bench.page.figures import findings
from tests.bench.page.records import Line, PageReport, encode
from tests.bench.page.visits import chromium, visited
from tests.chaos import gateway
from tests.server_process import serving

RESULTS = Path(__file__).parents[3] / "docs" / "bench" / "page.json"
PACKAGES = ("midstream", "uvicorn", "starlette", "brotli", "playwright")
SLOW = Line(down_kbit=1600, up_kbit=750, round_trip_ms=150)
ROUNDS = 7


def main() -> int:
    """Measure, print, write; gives 1 where a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, to see that it works")
    parser.add_argument("--rounds", type=int, help=f"visitors ({ROUNDS})")
    parser.add_argument(
        "--out", type=Path, help="file for results (docs/bench/page.json; with --quick: none)"
    )
    options = parser.parse_args()
    report = asyncio.run(measure(options.rounds or (1 if options.quick else ROUNDS)))
    if report.machine.warning:
        print(report.machine.warning)
    print(table(report))
    out = options.out or (None if options.quick else RESULTS)
    if out:
        out.write_bytes(encode(report))
        print(f"Written: {out}")
    return 1 if any(one.met is False for one in report.findings) else 0


async def measure(rounds: int) -> PageReport:
    """Have so many visitors come, one after the other."""
    machine = this_machine(PACKAGES)
    script = gateway.Script(words=40, pace_s=0.005)
    with (
        tempfile.TemporaryDirectory(prefix="midstream-page-") as name,
        serving(Path(name), command=gateway.command(script)) as server,
    ):
        async with chromium() as browser:
            made = [await visited(browser, server.url, SLOW) for _ in range(rounds + 1)]
    return PageReport(
        date=datetime.now(UTC).date().isoformat(),
        command="make bench-page",
        machine=machine,
        line=SLOW,
        findings=tuple(findings(made[1:])),
        rounds=tuple(made[1:]),
    )


if __name__ == "__main__":
    sys.exit(main())
