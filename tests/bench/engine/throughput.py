"""Tokens per second of all contenders, in turns, and their ratios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from tests.bench.engine.plan import Plan
from tests.bench.engine.records import Observed
from tests.bench.engine.registry import TITLES, Name
from tests.bench.engine.report import Figure, Finding, Run
from tests.bench.engine.session import Session
from tests.bench.engine.shapes import Shape
from tests.bench.engine.statistics import tokens_per_s
from tests.bench.engine.targets import AGAINST, ALONE, FULLEST
from tests.bench.table import TIMES

PEERS = (Name.BATCHING, Name.THREADS)


def measure(session: Session) -> None:
    """Give every contender its turn at every level, round after round."""
    plan = session.plan
    for number in range(plan.rounds):
        for shape, dtype, at_once in _loads(plan):
            for name in Name:
                _turn(session, name, (shape, dtype, at_once), number)
    session.cuts += cuts(session.runs, plan.rounds)
    session.findings += findings(session.runs)


def _loads(plan: Plan) -> Iterator[tuple[Shape, str, int]]:
    return ((s, dtype, at_once) for dtype in plan.dtypes for s in plan.models for at_once in plan.levels)


def _turn(session: Session, name: Name, load: tuple[Shape, str, int], number: int) -> None:
    shape, dtype, at_once = load
    key = (name, shape.name, dtype, at_once)
    if number and not session.wants_again(key):
        return
    what = f"{TITLES[name]}, {shape.name} {dtype}, {at_once} at once"
    job = session.plan.load(at_once, number)
    observed = session.once(what, lambda: session.crew.ask(name, shape, dtype, job, Observed), key=key)
    if observed is None:
        return
    noted(session, name, load, number, observed)


def noted(session: Session, name: Name, load: tuple[Shape, str, int], number: int, observed: Observed) -> Run:
    """Note and report a contender's result for a load: a shape, a dtype and a number at once."""
    shape, dtype, at_once = load
    run = Run(
        model=shape.name,
        dtype=dtype,
        contender=name,
        at_once=at_once,
        round=number,
        tokens_per_s=tokens_per_s(observed),
        cut=observed.cut,
    )
    session.runs.append(run)
    what = f"{TITLES[name]}, {shape.name} {dtype}, {at_once} at once"
    session.progress(f"  round {number + 1}, {what}: {run.tokens_per_s:,.0f} tokens/s{' (cut)' * run.cut}")
    return run


def findings(runs: Sequence[Run]) -> list[Finding]:
    """Return, for each model, dtype and level, our ratio to the peers; targets exist for the levels they name."""
    groups = dict.fromkeys((run.model, run.dtype, run.at_once) for run in runs)
    return [found for group in groups for found in _compared(group, medians(runs, group))]


def cuts(runs: Sequence[Run], rounds: int) -> list[str]:
    """List the loads that were measured in fewer rounds than the others, or not to their end."""
    reported = []
    for one in dict.fromkeys((run.contender, run.model, run.dtype, run.at_once) for run in runs):
        same = [run for run in runs if (run.contender, run.model, run.dtype, run.at_once) == one]
        why = [f"{len(same)} of {rounds} rounds"] if len(same) < rounds else []
        why += ["stopped before its end"] if any(run.cut for run in same) else []
        if why:
            reported.append(f"{TITLES[Name(one[0])]}, {one[1]} {one[2]}, {one[3]} at once: {', '.join(why)}")
    return reported


def medians(runs: Iterable[Run], group: tuple[str, str, int]) -> dict[str, float]:
    """Return the median tokens/s of each contender for a model, dtype and level."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if (run.model, run.dtype, run.at_once) == group:
            found.setdefault(run.contender, []).append(run.tokens_per_s)
    return {name: median(values) for name, values in found.items()}


def _compared(group: tuple[str, str, int], medians: dict[str, float]) -> Iterator[Finding]:
    model, dtype, at_once = group
    place = f"{model} {dtype}, {at_once} at once: tokens/s"
    if at_once >= FULLEST:
        for peer in PEERS:
            yield Finding(
                figure=Figure.THROUGHPUT,
                label=f"{place} against {TITLES[peer]}",
                value=_ratio(medians, [peer]),
                unit=TIMES,
                readings=medians,
                target=AGAINST.get(model, {}).get(peer),
            )
        return
    yield Finding(
        figure=Figure.THROUGHPUT,
        label=f"{place} against the better peer",
        value=_ratio(medians, PEERS),
        unit=TIMES,
        readings=medians,
        target=ALONE.get(model) if at_once == 1 and dtype == "bfloat16" else None,
    )


def _ratio(medians: dict[str, float], peers: Iterable[Name]) -> float | None:
    """Return ours as a multiple of the best of these peers; None if one of them is unknown."""
    best = max((medians.get(peer, 0.0) for peer in peers), default=0.0)
    ours = medians.get(Name.OURS)
    return ours / best if ours is not None and best else None
