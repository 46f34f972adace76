"""`make attack`: one client against all others, in every known way; a table with marks, and JSON.

It attacks servers of its own on this machine, and nothing else. Times are of those calm; ! is beyond what is asked for.
"""

from __future__ import annotations

import argparse
import signal
import sys

from tests.attack.families import ATTACKS
from tests.attack.report import RESULTS, AttackReport
from tests.attack.runner import run_attacks
from tests.attack.target import ATTACKERS
from tests.bench.report import run_lab

SECONDS = 3.0
ENDED = 128 + signal.SIGTERM


def measure(options: argparse.Namespace) -> AttackReport:
    """Run the chosen attacks, by one attacker and by many; `quick`: by one alone, and shorter."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ENDED))  # so that the servers' blocks end
    attackers, seconds = ((1,), 1.0) if options.quick else ((1, ATTACKERS), SECONDS)
    return run_attacks([ATTACKS[name] for name in options.only], attackers, seconds)


def main() -> int:
    """Run; return 0 if every mark is met."""
    return run_lab("tests.attack", __doc__, measure, file=RESULTS.name, parts=tuple(ATTACKS))


if __name__ == "__main__":
    sys.exit(main())
