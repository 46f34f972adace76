"""`make bench-peers`: Midstream, vLLM, llama-server and OpenVINO GenAI, in turns; installs missing peers first."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from tests.bench.engine.worker_pool import assembled
from tests.bench.machine import this_machine
from tests.bench.peers.install import NotInstallable, install
from tests.bench.peers.measurement import DTYPE, Rounds
from tests.bench.peers.plan import FULL, QUICK, Plan, parts
from tests.bench.peers.registry import ROOT, TITLES, Peer, PeerName, peers
from tests.bench.peers.report import LeftOut, PeersReport, encode, findings, table

RESULTS = ROOT / "docs" / "bench"
CONSTRAINTS = ROOT / "constraints.txt"
NAMES = tuple(who for who in PeerName if who is not PeerName.MIDSTREAM)
PACKAGES = ("midstream", "torch", "transformers", "tokenizers")

TERMINATED = 143
"""The exit code of a process that got SIGTERM."""

Progress = Callable[[str], None]


def main() -> int:
    """Install and measure; return 0 if nothing failed, whatever the figures are, and 2 if no peer is there."""
    options, progress = _options(), partial(print, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that started processes are ended
    here, left_out = chosen(_peers(options), options.only, progress, may_install=not options.no_install)
    if not here:
        for one in left_out:
            progress(f"Left out: {TITLES[one.who]}: {one.why}")
        return 2
    if options.install_only:
        return 0
    report = _measure(here, left_out, _plan(options), progress)
    print(f"\n{table(report)}")
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "peers.json").write_bytes(encode(report))
        print(f"Written: {options.out / 'peers.json'}")
    return 1 if report.failures else 0


def chosen(
    known: Collection[Peer],
    only: Collection[PeerName],
    progress: Progress,
    *,
    may_install: bool,
    install: Callable[[Peer, Progress], None] = install,
) -> tuple[dict[PeerName, Peer], list[LeftOut]]:
    """Return the peers that take part, installed, and the others, each with its reason."""
    here: dict[PeerName, Peer] = {}
    left_out: list[LeftOut] = []
    for peer in known:
        if why := _left_out(peer, only, progress, install if may_install else None):
            left_out.append(LeftOut(peer.who, why))
        else:
            here[peer.who] = peer
    return here, left_out


def _left_out(
    peer: Peer,
    only: Collection[PeerName],
    progress: Progress,
    install: Callable[[Peer, Progress], None] | None,
) -> str | None:
    """Return why a peer takes no part; None once it is installed."""
    if peer.who not in only:
        return "not asked for"
    if peer.installed:
        return None
    if install is None:
        return "not installed; without --no-install it would be"
    try:
        install(peer, progress)
    except NotInstallable as failure:
        progress(f"  not installed: {failure}")
        return f"not installed: {failure}"
    return None


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.peers", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", type=PeerName, choices=NAMES, default=NAMES, metavar="PEER", help=" ".join(NAMES)
    )
    parser.add_argument("--quick", action="store_true", help="one tiny round, to see that all of it works")
    parser.add_argument("--rounds", type=int, help=f"how often each has its turn ({FULL.rounds})")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help=f"for all rounds ({FULL.budget_s:.0f})"
    )
    parser.add_argument("--no-install", action="store_true", help="measure those that are installed")
    parser.add_argument("--install-only", action="store_true", help="measure nothing")
    parser.add_argument("--torch-index", help="where torch comes from, if not from pip's own index")
    parser.add_argument("--out", type=Path, help="folder for results (docs/bench; with --quick: none)")
    options = parser.parse_args()
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    if options.out is None and not options.quick:
        options.out = RESULTS
    return options


def _peers(options: argparse.Namespace) -> tuple[Peer, ...]:
    return peers(torch=torch_pin(CONSTRAINTS.read_text(encoding="utf-8")), torch_index=options.torch_index)


def torch_pin(constraints: str) -> str:
    """Return our own pin of torch: a looser one can pull in gigabytes of GPU packages. Pure."""
    return next((line for line in constraints.splitlines() if line.startswith("torch==")), "torch")


def _plan(options: argparse.Namespace) -> Plan:
    named = {"rounds": options.rounds, "budget_s": options.budget}
    given = {name: value for name, value in named.items() if value is not None}
    return msgspec.structs.replace(QUICK if options.quick else FULL, **given)


def _measure(
    here: dict[PeerName, Peer], left_out: list[LeftOut], plan: Plan, progress: Progress
) -> PeersReport:
    machine = this_machine(PACKAGES)
    for line in warnings(plan, machine.warning):
        progress(line)
    with assembled() as crew:
        rounds = Rounds(plan, here, crew, progress)
        rounds.measure(parts(frozenset(here)))
    return PeersReport(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        dtype=DTYPE,
        plan=plan,
        versions={str(who): peer.version for who, peer in here.items()},
        findings=tuple(findings(rounds.runs, plan)),
        runs=tuple(rounds.runs),
        failures=tuple(rounds.failures),
        left_out=tuple(left_out),
        cuts=tuple(rounds.cuts),
    )


def warnings(plan: Plan, of_machine: str | None) -> Iterator[str]:
    """Return notes for the reader of the figures. Pure."""
    if of_machine:
        yield of_machine
    if not plan.held:
        yield "A quick round shows that all of it works. Its figures are worth nothing."


if __name__ == "__main__":
    sys.exit(main())
