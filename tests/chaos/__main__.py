"""`make chaos`: bad days, one after the other; a table with targets, and JSON.

A command, not a test: it takes up to two hours and gives figures. `make test-long` has short runs of its parts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.bench.engine.table import table
from tests.chaos.report import Part, encode
from tests.chaos.runner import ALONE, MEASURES, run_scenarios
from tests.chaos.scenario import FULL, QUICK

RESULTS = Path(__file__).parents[2] / "docs" / "bench" / "chaos.json"


def main() -> int:
    """Run; return 0 if everything ran and every target is met."""
    options = _options()
    scale = QUICK if options.quick else FULL
    report = run_scenarios(
        scale, options.only, seed=options.seed, log=lambda line: print(line, file=sys.stderr, flush=True)
    )
    print(f"\n{table(report)}")
    print(f"Seed {report.seed}, {sum(report.took_s.values()):.0f} s")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_bytes(encode(report))
        print(f"Written: {options.out}")
    return 0 if report.is_good else 1


def _options() -> argparse.Namespace:
    names = list(MEASURES)
    usual = [name for name in names if name not in ALONE]
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", nargs="+", type=Part, choices=names, default=usual, metavar="PART",
                        help=", ".join(names))  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="a little of each, to see that all of it works")
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (1)")
    parser.add_argument(
        "--out", type=Path, help=f"file for results ({RESULTS.name} in docs/bench, if all parts run in full)"
    )
    options = parser.parse_args()
    if options.out is None and not options.quick and options.only == usual:
        options.out = RESULTS
    return options


if __name__ == "__main__":
    sys.exit(main())
