"""Makes ratios of runs, with their marks (pure), and reads and writes the file of results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

import msgspec

from tests.bench.engine.report import Failure, Measured, Target
from tests.bench.engine.table import table as findings_table
from tests.bench.machine import Machine
from tests.bench.peers.plan import MARKS, Kind, Mark, Measurand, Plan
from tests.bench.peers.registry import TITLES, PeerName
from tests.bench.table import TIMES


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One program under one load in one round. `tokens_per_reply`: of the shortest reply."""

    who: PeerName
    model: str
    kind: Kind
    clients: int
    round: int
    tokens_per_s: float
    first_token_ms: float | None = None
    tokens_per_reply: float | None = None

    def figure(self, of: Measurand) -> float | None:
        """Return one of the figures."""
        return self.tokens_per_s if of is Measurand.TOKENS_PER_S else self.first_token_ms


class LeftOut(msgspec.Struct, frozen=True):
    """A peer that took no part, and the reason."""

    who: PeerName
    why: str


class PeersReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result. `date` is an ISO 8601 day; `versions` are the peers'; `cuts` list what time did not allow."""

    date: str
    machine: Machine
    dtype: str
    plan: Plan
    versions: dict[str, str]
    findings: tuple[Measured, ...]
    runs: tuple[Run, ...]
    failures: tuple[Failure, ...]
    left_out: tuple[LeftOut, ...]
    cuts: tuple[str, ...]


def findings(runs: Sequence[Run], plan: Plan) -> list[Measured]:
    """Return our ratios to each peer, mark by mark; ratios to peers that were not measured are left out."""
    return [found for mark in _marks(runs, plan) if (found := _found(mark, runs, plan)) is not None]


def table(report: PeersReport) -> str:
    """Return the table as text, followed by the failures and the peers that were left out."""
    lines = [findings_table(report)]
    lines += [f"Left out: {TITLES[one.who]}: {one.why}" for one in report.left_out]
    met = [found.met for found in report.findings]
    if any(one is not None for one in met):
        lines.append(f"Marks: {met.count(True)} met, {met.count(False)} not met.")
    return "\n".join(lines)


def _marks(runs: Sequence[Run], plan: Plan) -> Iterator[Mark]:
    """Return the marks; a plan with other sizes gets marks with its own sizes."""
    if plan.held:
        yield from MARKS
        return
    for one in dict.fromkeys((run.who, run.model, run.kind, run.clients) for run in runs):
        who, model, kind, clients = one
        if who is not PeerName.MIDSTREAM:
            yield Mark(peer=who, model=model, kind=kind, clients=clients, target=Target(0.0))


def _found(mark: Mark, runs: Sequence[Run], plan: Plan) -> Measured | None:
    ours, theirs = (_by_round(runs, who, mark) for who in (PeerName.MIDSTREAM, mark.peer))
    if not theirs:
        return None
    both = sorted(ours.keys() & theirs.keys())
    short = _shortest(runs, mark)
    return Measured(
        label=_label(mark, plan),
        value=median(ours[number] / theirs[number] for number in both) if both else None,
        unit=TIMES,
        readings={
            TITLES[who]: median(values.values())
            for who, values in ((PeerName.MIDSTREAM, ours), (mark.peer, theirs))
            if values
        },
        target=mark.target if plan.held else None,
        note="; ".join(
            [f"{len(both)} rounds" if len(both) > 1 else f"{len(both)} round"]
            + ([f"shortest reply {short:.0f} tokens"] if short is not None else [])
        ),
    )


def _by_round(runs: Iterable[Run], who: PeerName, mark: Mark) -> dict[int, float]:
    return {
        run.round: value
        for run in runs
        if run.who is who and _is_of(run, mark) and (value := run.figure(mark.of))
    }


def _shortest(runs: Iterable[Run], mark: Mark) -> float | None:
    """Return the tokens of the shortest reply; None if ours and theirs all had full length."""
    lengths = {
        run.tokens_per_reply
        for run in runs
        if run.who in {PeerName.MIDSTREAM, mark.peer}
        and _is_of(run, mark)
        and run.tokens_per_reply is not None
    }
    return min(lengths) if len(lengths) > 1 else None


def _is_of(run: Run, mark: Mark) -> bool:
    return (run.model, run.kind, run.clients) == (mark.model, mark.kind, mark.clients)


def _label(mark: Mark, plan: Plan) -> str:
    clients = f"{mark.clients} client{'s' if mark.clients > 1 else ''}"
    match mark.kind:
        case Kind.CHAT:
            what = f"chat completions, {clients}"
        case Kind.LONG:
            what = f"prompts of {plan.long_tokens:,} tokens, {clients}"
        case Kind.ENGINE:
            what = f"engine alone, {mark.clients} at once"
    return f"{mark.model}, {what}: {mark.of} against {TITLES[mark.peer]}"


def encode(report: PeersReport) -> bytes:
    """Return a report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode(text: bytes) -> PeersReport:
    """Return the report in a file. Raises msgspec.ValidationError."""
    return msgspec.json.decode(text, type=PeersReport)
