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

import msgspec

from tests.bench.report import RESULTS, Failure, Measured, Report
from tests.chaos import (
    fuzz,
    interruptions,
    kills,
    random_walks,
    store_trouble,
    upgrade,
)
from tests.chaos.scenario import FULL, QUICK, Scale, Scenario

PARTS: dict[str, Callable[[Scenario], Sequence[Measured]]] = {
    "fuzz-frames": fuzz.frames,
    "fuzz-handshakes": fuzz.handshakes,
    **fuzz.ENDPOINTS,
    "network": store_trouble.network,
    **store_trouble.FAILOVERS,
    "kills": kills.kills,
    "power-failures": kills.power_failures,
    "walks": random_walks.measure,
    "tools": kills.tools,
    "upgrade": upgrade.measure,
    "cuts": interruptions.measure,
}
"""The parts, in the order in which they run, as `--only` names them."""
USUAL = ["fuzz-frames", "fuzz-handshakes", "network", "cluster", "sentinel", "kills", "walks"]
"""Those that run if none is named: an hour at most."""
LIMIT_S = 2700.0
"""The longest that a part may take."""


class OutOfTime(Exception):
    """A part took longer than its limit."""


def main() -> int:
    """Run; return 0 if everything ran and every target is met."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=USUAL, metavar="PART", help=", ".join(PARTS)
    )
    parser.add_argument("--quick", action="store_true", help="a little of each, to see that all of it works")
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (1)")
    parser.add_argument(
        "--out", type=Path, help="file for results (docs/bench/chaos.json, if all parts run in full)"
    )
    options = parser.parse_args()
    report = run_scenarios(QUICK if options.quick else FULL, options.only, seed=options.seed)
    whole = not options.quick and options.only == USUAL
    return report.conclude(options.out or (RESULTS / "chaos.json" if whole else None))


def run_scenarios(scale: Scale, names: Collection[str], *, seed: int, limit_s: float = LIMIT_S) -> Report:
    """Run the parts, each within its time."""
    took_s: dict[str, float] = {}
    report = Report(details={"seed": seed, "took_s": took_s})
    log(report.machine.warning)
    for name in (name for name in PARTS if name in names):
        log(name)
        started = time.monotonic()
        folders = tempfile.TemporaryDirectory(prefix="midstream-chaos-")
        try:
            with folders as folder, _no_longer_than(limit_s):
                found = PARTS[name](Scenario(scale=scale, folder=Path(folder), seed=seed, log=log))
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
