"""`make attack`: one client against all others, in every known way; a table with marks, and JSON.

It attacks servers of its own on this machine, and nothing else. Exit status 1: a mark is missed, or an attack failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tests.attack.registry import ATTACKS
from tests.attack.report import encode
from tests.attack.runner import Plan, run_attacks
from tests.attack.table import listed, markdown, put_between, table
from tests.attack.target import ATTACKERS

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "bench" / "attack.json"
GUIDE = DOCS / "attack.md"
SECONDS = 3.0
ENDED = 128 + signal.SIGTERM


def main() -> int:
    """Run; return 0 if every mark is met."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))  # so that the servers' blocks end
    options = _options()
    if options.list:
        print(listed(ATTACKS.values()))
        return 0
    plan = Plan(
        attacks=tuple(ATTACKS[name] for name in options.only),
        attackers=tuple(options.attackers),
        seconds=options.seconds,
    )
    report = run_attacks(plan, log=lambda line: print(line, file=sys.stderr, flush=True))
    print(f"\n{table(report)}")
    print(f"{report.took_s:.0f} s. Times are of those calm; ! is beyond what is asked for.")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_bytes(encode(report))
        print(f"Written: {options.out}")
    if options.out == RESULTS:
        GUIDE.write_text(put_between(GUIDE.read_text(), "results", markdown(report)))
        print(f"Written: {GUIDE}")
    return 0 if report.is_good else 1


def _options() -> argparse.Namespace:
    names = list(ATTACKS)
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help="some attacks, as --list names them")  # fmt: skip
    parser.add_argument("--attackers", nargs="+", type=_count, default=[1, ATTACKERS], metavar="COUNT", help=f"how many attack at once, up to {ATTACKERS} (1 {ATTACKERS})")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long each attack lasts ({SECONDS:g})")  # fmt: skip
    parser.add_argument("--out", type=Path, help=f"file for results (docs/bench/{RESULTS.name} and the table in docs/{GUIDE.name}, if all of it runs)")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="say what there is, and end")
    options = parser.parse_args()
    is_all = (options.only, options.attackers, options.seconds) == (names, [1, ATTACKERS], SECONDS)
    if options.out is None and is_all:
        options.out = RESULTS
    return options


def _count(text: str) -> int:
    if not 1 <= (count := int(text)) <= ATTACKERS:
        raise argparse.ArgumentTypeError(f"{count} is not within 1 to {ATTACKERS}")
    return count


if __name__ == "__main__":
    sys.exit(main())
