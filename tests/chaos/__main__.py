"""`make chaos`: fault injection, one part after the other; a table with targets, and JSON.

A command, not a test: it takes up to two hours and gives figures. `make test-long` has short runs of its parts. A part that fails,
or takes longer than its limit, is in the report with its reason.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.bench.report import RESULTS, Failure, Measured, Report
from tests.chaos import (
    alert_scenarios,
    fuzz,
    interruptions,
    kills,
    many_connections,
    random_walks,
    replicas,
    store_trouble,
    upgrade,
)
from tests.chaos.scenario import FULL, QUICK, Scale, Scenario


class Part(NamedTuple):
    """A part, and its time limit. `is_usual`: it runs even if it is not named."""

    measure: Callable[[Scenario], Sequence[Measured]]
    limit_s: float
    is_usual: bool = True


PARTS = {
    "fan-out": Part(many_connections.fan_out, 150),
    "idle": Part(many_connections.idle, 120),
    "storm": Part(many_connections.storm, 60),
    "slow-readers": Part(many_connections.slow_readers, 210),
    "fuzz-frames": Part(fuzz.frames, 150),
    "fuzz-handshakes": Part(fuzz.handshakes, 120),
    **{name: Part(measure, 300, is_usual=False) for name, measure in fuzz.ENDPOINTS.items()},
    "network": Part(store_trouble.network, 150),
    "replicas": Part(replicas.measure, 240),
    "partitions": Part(store_trouble.partitions, 300),
    **{
        name: Part(measure, limit_s, is_usual=name in ("cluster", "sentinel"))
        for (name, measure), limit_s in zip(
            store_trouble.FAILOVERS.items(), (300, 300, 600, 300, 900, 600), strict=True
        )
    },
    "out-of-memory": Part(store_trouble.out_of_memory, 180),
    "eviction": Part(store_trouble.eviction, 120),
    "poisoned-journal": Part(store_trouble.poison, 60),
    "kills": Part(kills.kills, 2700),
    "power-failures": Part(kills.power_failures, 600, is_usual=False),
    "walks": Part(random_walks.measure, 180),
    "tools": Part(kills.tools, 1200, is_usual=False),
    "alerts": Part(alert_scenarios.measure, 600, is_usual=False),
    "upgrade": Part(upgrade.measure, 300, is_usual=False),
    "cuts": Part(interruptions.measure, 1800, is_usual=False),
}
"""The parts, in the order in which they run, as `--only` names them; 90 minutes without those that run only if named."""


class OutOfTime(Exception):
    """A part took longer than its limit."""


def main() -> int:
    """Run; return 0 if everything ran and every target is met."""
    usual = [name for name, part in PARTS.items() if part.is_usual]
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=usual, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--quick", action="store_true", help="a little of each, to see that all of it works")
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (1)")
    parser.add_argument(
        "--out", type=Path, help="file for results (docs/bench/chaos.json, if all parts run in full)"
    )
    options = parser.parse_args()
    report = run_scenarios(QUICK if options.quick else FULL, options.only, seed=options.seed)
    whole = not options.quick and options.only == usual
    return report.conclude(options.out or (RESULTS / "chaos.json" if whole else None))


def run_scenarios(scale: Scale, names: Collection[str], *, seed: int) -> Report:
    """Run the parts, each within its time."""
    took_s: dict[str, float] = {}
    report = Report(details={"seed": seed, "took_s": took_s})
    log(report.machine.warning)
    for name, part in PARTS.items():
        if name in names:
            log(f"{name}: {part.limit_s:.0f} s at most")
            started = time.monotonic()
            folders = tempfile.TemporaryDirectory(prefix="midstream-chaos-")
            try:
                with folders as folder, _no_longer_than(part.limit_s):
                    found = part.measure(Scenario(scale=scale, folder=Path(folder), seed=seed, log=log))
                report.findings += [msgspec.structs.replace(one, part=name) for one in found]
            except Exception as error:  # noqa: BLE001 - a part's boundary: the other parts still run
                log(traceback.format_exc())
                report.failures.append(Failure(name, f"{type(error).__name__}: {error}"))
            took_s[name] = round(time.monotonic() - started, 1)
    return report


def log(line: str) -> None:
    """Report progress."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def _no_longer_than(seconds: float) -> Iterator[None]:
    """Raise OutOfTime inside the block once the time is up. For the main thread only."""

    def stop(_number: int, _frame: object) -> None:
        raise OutOfTime(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


if __name__ == "__main__":
    sys.exit(main())
