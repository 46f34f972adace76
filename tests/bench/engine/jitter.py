"""Evenness of tokens: without arrivals, and while another's long prompt is computed; ours and its best peer."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from tests.bench.engine.records import Load, Observed
from tests.bench.engine.registry import TITLES, Name
from tests.bench.engine.report import Figure, Finding
from tests.bench.engine.session import Session
from tests.bench.engine.shapes import Shape
from tests.bench.engine.statistics import longest_gap_ms, steadiness
from tests.bench.engine.targets import PREFILL_GAP_MS, STEADY

MEASURED = (Name.OURS, Name.BATCHING)


def steady(session: Session) -> None:
    """Measure the gaps between tokens while nothing arrives."""
    plan = session.plan
    for shape in plan.models:
        what = f"{shape.name}, {plan.streams} streams: gap p99 / p50"
        found = _medians(session, shape, what, plan.steady, steadiness)
        session.found(
            Finding(
                figure=Figure.STEADY, label=what, value=found.get(Name.OURS), readings=found, target=STEADY
            )
        )


def prefill_gap(session: Session) -> None:
    """Measure how long running streams wait for another's long prompt."""
    plan = session.plan
    for shape in (one for one in plan.models if one.name in PREFILL_GAP_MS):
        what = f"{shape.name}, {plan.streams} streams: longest gap in a prefill of {plan.long_tokens}"
        found = _medians(session, shape, what, plan.intrusion, longest_gap_ms)
        session.found(
            Finding(
                figure=Figure.PREFILL_GAP,
                label=what,
                value=found.get(Name.OURS),
                unit="ms",
                readings=found,
                target=PREFILL_GAP_MS[shape.name],
            )
        )


def _medians(
    session: Session,
    shape: Shape,
    what: str,
    load: Callable[[int], Load],
    reading: Callable[[Observed], float | None],
) -> dict[str, float]:
    """Return the medians of one reading over the rounds, in turns, by contender."""
    found: dict[str, list[float]] = {}

    def act(name: Name, number: int) -> None:
        observed = session.crew.ask(name, shape, session.plan.dtype, load(number), Observed)
        if (value := reading(observed)) is not None:
            found.setdefault(name, []).append(value)
            session.progress(f"  {TITLES[name]}, {what}: {value:,.2f}")

    session.turns(what, MEASURED, act)
    return {name: median(values) for name, values in found.items()}
