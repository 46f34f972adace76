"""`make chaos`: fault injection, one part after the other; a table with targets, and JSON.

A command, not a test: it takes up to two hours and gives figures. `make test-long` has short runs of its parts. A part that fails,
or takes longer than its limit, is in the report with its reason.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import msgspec

from tests.bench.report import Failure, Measured, MeasurementFailed, Report, run_lab, say
from tests.chaos import fuzz, kills, random_walks, store_trouble
from tests.chaos.scenario import FULL, QUICK, Scale, Scenario

PARTS: dict[str, Callable[[Scenario], Awaitable[Sequence[Measured]]]] = {
    "fuzz-frames": fuzz.frames,
    "fuzz-handshakes": fuzz.handshakes,
    **fuzz.ENDPOINTS,
    "network": store_trouble.network,
    **store_trouble.FAILOVERS,
    "kills": kills.kills,
    "power-failures": kills.power_failures,
    "walks": random_walks.measure,
    "tools": kills.tools,
}
"""The parts, in the order in which they run, as `--only` names them."""
USUAL = ["fuzz-frames", "fuzz-handshakes", "network", "cluster", "sentinel", "kills", "walks"]
"""Those that run if none is named: an hour at most."""
LIMIT_S = 2700.0
"""The longest that a part may take."""


def run_scenarios(scale: Scale, names: Collection[str], *, seed: int, limit_s: float = LIMIT_S) -> Report:
    """Run the parts, each within its time."""
    took_s: dict[str, float] = {}
    report = Report(details={"seed": seed, "took_s": took_s})
    say(report.machine.warning)
    for name in (name for name in PARTS if name in names):
        say(name)
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="midstream-chaos-") as folder:
                part = PARTS[name](Scenario(scale=scale, folder=Path(folder), seed=seed))
                found = asyncio.run(_within(limit_s, part))
            report.findings += [msgspec.structs.replace(one, part=name) for one in found]
        except Exception as error:  # noqa: BLE001 - a part's boundary: the other parts still run
            say(traceback.format_exc())
            report.failures.append(Failure(name, f"{type(error).__name__}: {error}"))
        took_s[name] = round(time.monotonic() - started, 1)
    return report


async def _within(limit_s: float, part: Awaitable[Sequence[Measured]]) -> Sequence[Measured]:
    async with asyncio.timeout(limit_s) as limit:
        try:
            return await part
        except asyncio.CancelledError:
            if limit.expired():
                raise MeasurementFailed(f"it was not done in {limit_s:g} s") from None
            raise


def measure(options: argparse.Namespace) -> Report:
    """Run the chosen parts."""
    return run_scenarios(QUICK if options.quick else FULL, options.only, seed=options.seed)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the option of this lab alone."""
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (1)")


if __name__ == "__main__":
    sys.exit(
        run_lab(
            "tests.chaos", __doc__, measure, file="chaos.json", parts=tuple(PARTS), usual=USUAL, more=more
        )
    )
