"""`make attack`: one client against all others, in every known way; a table with marks, and JSON.

It attacks servers of its own on this machine, and nothing else. Exit status 1: a mark is missed, or an attack failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.attack.families import ATTACKS
from tests.attack.report import listed
from tests.attack.runner import run_attacks
from tests.attack.target import ATTACKERS

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "bench" / "attack.json"
GUIDE = DOCS / "attack.md"
SECONDS = 3.0
ENDED = 128 + signal.SIGTERM


def main() -> int:
    """Run; return 0 if every mark is met."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))  # so that the servers' blocks end
    names, usual = list(ATTACKS), [1, ATTACKERS]
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    add = parser.add_argument
    add(
        "--only",
        nargs="+",
        choices=names,
        default=names,
        metavar="NAME",
        help="some attacks, as --list names them",
    )
    add("--attackers", nargs="+", type=int, choices=range(1, ATTACKERS + 1), default=usual, metavar="COUNT",
        help=f"how many attack at once, up to {ATTACKERS} (1 {ATTACKERS})")  # fmt: skip
    add("--seconds", type=float, default=SECONDS, help=f"how long each attack lasts ({SECONDS:g})")
    add(
        "--out",
        type=Path,
        help="file for results (docs/bench/attack.json and the table in docs/attack.md, if all of it runs)",
    )
    add("--list", action="store_true", help="say what there is, and end")
    options = parser.parse_args()
    if options.list:
        print(listed(ATTACKS.values()))
        return 0
    is_all = (options.only, options.attackers, options.seconds) == (names, usual, SECONDS)
    out = options.out or (RESULTS if is_all else None)
    attacks = [ATTACKS[name] for name in options.only]
    report = run_attacks(
        attacks, options.attackers, options.seconds, log=lambda line: print(line, file=sys.stderr, flush=True)
    )
    print(
        f"\n{report.table()}\n{report.took_s:.0f} s. Times are of those calm; ! is beyond what is asked for."
    )
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(report.encoded())
        print(f"Written: {out}")
    if out == RESULTS:
        GUIDE.write_text(report.put_into(GUIDE.read_text()))
        print(f"Written: {GUIDE}")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
