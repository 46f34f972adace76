"""`make bench-engine`: the engine and its peers, in turns; a table with targets, JSON and a picture."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import msgspec

from tests.bench.engine.plan import FULL, QUICK, Plan
from tests.bench.engine.report import EngineReport, Figure, encode
from tests.bench.engine.runner import run_measurements
from tests.bench.engine.shapes import SMALL, TINY
from tests.bench.engine.table import table
from tests.bench.engine.worker_pool import assembled

RESULTS = Path(__file__).parents[3] / "docs" / "bench"
MODELS = {shape.name: shape for shape in (TINY, SMALL)}
DTYPES = ("bfloat16", "float32")


def main() -> int:
    """Measure; return 0 if nothing failed, whatever the figures are."""
    options = _options()
    with assembled() as crew:
        report = run_measurements(_plan(options), options.only, crew, progress=partial(print, flush=True))
    print(f"\n{table(report)}")
    if options.out:
        _write(report, options.out)
    return 1 if report.failures else 0


def _options() -> argparse.Namespace:
    names = list(Figure)
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny round, to see that all of it works")
    parser.add_argument("--only", nargs="+", type=Figure, choices=names, default=names, metavar="FIGURE")
    parser.add_argument("--model", nargs="+", choices=list(MODELS), help="random weights to measure (both)")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, help="the first is for all but the throughput")
    parser.add_argument("--rounds", type=int, help=f"of each measurement ({FULL.rounds})")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help=f"for all of it ({FULL.budget_s:.0f})"
    )
    parser.add_argument("--out", type=Path, help="folder for results (docs/bench; with --quick: none)")
    options = parser.parse_args()
    if options.out is None and not options.quick:
        options.out = RESULTS
    return options


def _plan(options: argparse.Namespace) -> Plan:
    chosen = {
        "models": options.model and tuple(MODELS[name] for name in options.model),
        "dtypes": options.dtype and tuple(options.dtype),
        "rounds": options.rounds,
        "budget_s": options.budget,
    }
    named = {name: value for name, value in chosen.items() if value is not None}
    return msgspec.structs.replace(QUICK if options.quick else FULL, **named)


def _write(report: EngineReport, folder: Path) -> None:
    from tests.bench.engine.chart import draw  # noqa: PLC0415 - matplotlib is slow to load and only drawing needs it

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.json").write_bytes(encode(report))
    draw(report, folder / "engine.png")
    print(f"Written: {folder / 'engine.json'}, {folder / 'engine.png'}")


if __name__ == "__main__":
    sys.exit(main())
