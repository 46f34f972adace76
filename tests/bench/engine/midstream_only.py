"""Measurements of our engine alone: the next turn, cancels, its bound, its memory."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import TypeVar

from tests.bench.engine.records import BoundFacts, CancelFacts, Job, MemoryFacts, TurnTimes
from tests.bench.engine.registry import Name
from tests.bench.engine.report import Figure, Finding
from tests.bench.engine.session import Session
from tests.bench.engine.shapes import SMALL, SPECK, Shape
from tests.bench.engine.statistics import MS
from tests.bench.engine.targets import BOUND, GROWTH_PERCENT, NEXT_TURN, PREFILL_STEP_MS, STEPS_AFTER
from tests.bench.table import TIMES

A = TypeVar("A")


def next_turn(session: Session) -> None:
    """Measure how much sooner a conversation's next turn begins than its first."""
    plan = session.plan
    for shape in plan.models:
        what = f"{shape.name}, {plan.long_tokens} tokens of history: first prefill / next turn"
        times = session.rounds(what, partial(_two_turns, session, shape))
        if not times:
            continue
        first, following = median(one.first_s for one in times), median(one.next_s for one in times)
        session.progress(f"  {what}: {first / following:.1f}")
        session.found(
            Finding(
                figure=Figure.NEXT_TURN,
                label=what,
                value=first / following,
                unit=TIMES,
                readings={"first ms": first * MS, "next ms": following * MS},
                target=NEXT_TURN,
                note=f"cached {times[-1].cached_tokens} of {times[-1].prompt_tokens} tokens",
            )
        )


def _two_turns(session: Session, shape: Shape, number: int) -> TurnTimes:
    return _run_job(session, shape, session.plan.next_turn(number), TurnTimes)


def cancel(session: Session) -> None:
    """Measure the cost of a cancel, in a reply and in a prefill."""
    for shape in session.plan.models:
        what = f"{shape.name}, cancel"
        facts = session.once(what, partial(_run_job, session, shape, session.plan.cancels(), CancelFacts))
        if facts is None:
            continue
        longest_ms = facts.longest_prefill_step_s * MS
        session.progress(f"  {what}: longest step in a prefill {longest_ms:.0f} ms")
        session.findings += [
            Finding(figure=Figure.CANCEL, label=f"{what}: {label}", value=value, unit=unit, target=target)
            for label, value, unit, target in (
                ("steps after it, most", float(facts.decode_steps), "", STEPS_AFTER),
                ("chunks after it in a prefill, most", float(facts.prefill_steps), "", STEPS_AFTER),
                ("longest step in a prefill", longest_ms, "ms", PREFILL_STEP_MS),
            )
        ]


def bound(session: Session) -> None:
    """Compare a full step with its matrix products and the reading of its keys and values."""
    for shape in session.plan.models:
        what = f"{shape.name} {session.plan.dtype}, {session.plan.fullest} at once: bound / step"
        facts = session.once(what, partial(_run_job, session, shape, session.plan.bound(), BoundFacts))
        if facts is None:
            continue
        session.progress(f"  {what}: {facts.share:.2f}")
        session.found(
            Finding(
                figure=Figure.BOUND,
                label=what,
                value=facts.share,
                readings={"step ms": facts.step_s * MS, "matrix products ms": facts.matrices_s * MS},
                target=BOUND if shape.name == SMALL.name else None,
                note=f"products alone {facts.matrices_share:.2f}, memory {facts.bandwidth / 1e9:.1f} GB/s",
            )
        )


def memory(session: Session) -> None:
    """Measure whether memory grows over many turns."""
    plan = session.plan
    what = f"memory over {plan.turns:,} turns, growth after {plan.settled:,}"
    act = partial(session.crew.ask, Name.OURS, SPECK, plan.dtype, plan.memory(), MemoryFacts)
    facts = session.once(what, partial(act, kv_bytes=plan.kv_bytes_of_turns))
    if facts is None:
        return
    session.progress(f"  {what}: {facts.growth:.2%}")
    session.found(
        Finding(
            figure=Figure.MEMORY,
            label=what,
            value=facts.growth * 100,
            unit="%",
            readings={"MiB then": facts.settled_bytes / 2**20, "MiB at the end": facts.end_bytes / 2**20},
            target=GROWTH_PERCENT,
            note=f"{facts.cancelled:,} cancelled",
        )
    )


def _run_job(session: Session, shape: Shape, job: Job, answer: type[A]) -> A:
    """Have our engine run a job with a model. Raises MeasurementFailed."""
    return session.crew.ask(Name.OURS, shape, session.plan.dtype, job, answer)
