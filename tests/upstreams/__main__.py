"""`make test-upstreams`: what clients are told of each failure of an upstream, and real servers as upstreams; two tables.

A command, not tests: transformers' server takes minutes to install and to start. `make test` has the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from tests.upstreams.misbehaving import CASES, outcome_of
from tests.upstreams.real_servers import PEERS, PeerResult, measure_peer

IDLE_S = 1.0
BOUND = ("misbehaving", "midstream")
"""Who has to be idle so soon after a cancel; the others' time is their own, and told."""


def main() -> int:
    """Run; gives 0 when all was as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstreams", description=__doc__)
    names = ["failures", *PEERS]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="PART", help=", ".join(names)
    )
    only = parser.parse_args().only
    logging.disable()
    good = [asyncio.run(_failures())] if "failures" in only else []
    peers = [name for name in PEERS if name in only]
    if peers:
        _row(
            "upstream", "greedy reply", "tokens", "idle after a cancel, s (median, worst)", "lay here, ms", ""
        )
        good += [asyncio.run(_peer(name)) for name in peers]
    return 0 if all(good) else 1


async def _failures() -> bool:
    """Every failure by the client's side of it; whether each was told as it should be."""
    _row("the upstream", "the client is told", "")
    good = True
    for case in CASES:
        with (
            tempfile.TemporaryDirectory() as folder,
            redirect_stdout(io.StringIO()),
        ):  # a service prints its log
            outcome = await outcome_of(case, Path(folder))
        good &= outcome == case.outcome
        _row(case.name, str(outcome), "" if outcome == case.outcome else f"NOT {case.outcome}")
    print()
    return good


async def _peer(name: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        async with PEERS[name](Path(folder)) as peer:
            result = await measure_peer(peer)
    late = name in BOUND and max(result.idle_s) > IDLE_S
    _row(
        name,
        repr(result.text),
        str(result.tokens),
        _times(result),
        f"{result.lay_ms:.2f}",
        "TOO LATE" if late else "",
    )
    return not late


def _times(result: PeerResult) -> str:
    ordered = sorted(result.idle_s)
    return f"{ordered[len(ordered) // 2]:.3f}, {ordered[-1]:.3f}"


def _row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
