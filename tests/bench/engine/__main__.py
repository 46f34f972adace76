"""`make bench-engine`: the engine, and transformers' continuous batching in turns with it; a table with targets, and JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from typing import Any, TypeVar

import msgspec

from tests.bench.engine.load import Load
from tests.bench.engine.shapes import SMALL, SPECK, TINY, Shape
from tests.bench.engine.worker import TITLES, Name, WorkerPool, assembled
from tests.bench.report import MS, TIMES, Measured, MeasurementFailed, Report, Target, at_most, run_lab, say

# The targets on two cores.
AGAINST = {"tiny": Target(3.0), "small": Target(3.6)}
"""Tokens/s, as a multiple of continuous batching's."""
NEXT_TURN = Target(40.0)
"""Time to the first token on a long history, first turn divided by next turn."""
STEPS_AFTER = at_most(1.0)
"""Steps after a cancel was read; in a prefill, chunks."""
PREFILL_STEP_MS = at_most(100.0)
"""The longest step that a cancel may have to wait for, in milliseconds."""
WARM_UP_TOKENS = 8
GROWTH_PERCENT = at_most(0.5)
"""Growth of resident memory once it has settled, in percent."""

T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes. `at_once`: numbers of replies whose throughput is compared, the largest of them also elsewhere.

    `cut_s`: limit of a load. `streams` are cancelled, `long_tokens` is a long prompt.
    """

    models: tuple[Shape, ...] = (TINY, SMALL)
    dtype: str = "bfloat16"
    rounds: int = 3
    cut_s: float = 40.0
    at_once: tuple[int, ...] = (32,)
    prompt_tokens: int = 64
    new_tokens: int = 128
    streams: int = 16
    long_tokens: int = 4096
    reply_tokens: int = 32
    added_tokens: int = 32
    turns: int = 10_000
    settled: int = 1_000
    kv_bytes_of_turns: int = 4 * 2**20
    """Memory for keys and values in the test of growth: it is full before the first reading."""


FULL = Plan()
QUICK = Plan(
    models=(TINY,), rounds=1, cut_s=15.0, at_once=(4,), new_tokens=16, streams=4, long_tokens=400, reply_tokens=8,
    turns=200, settled=50,
)  # fmt: skip
"""A plan that only shows that everything works."""


class Session:
    """One run of the benchmark; its report fills up."""

    def __init__(self, plan: Plan, pool: WorkerPool) -> None:
        self.plan, self.pool = plan, pool
        self.report = Report(details={"plan": plan})

    def rounds(self, what: str, act: Callable[[int], T], times: int | None = None) -> list[T]:
        """Measure in so many rounds; a failure is noted with its reason, and ends them."""
        found: list[T] = []
        for number in range(times or self.plan.rounds):
            try:
                found.append(act(number))
            except MeasurementFailed as failure:
                self.report.fail(what, failure)
                break
        return found

    def found(self, part: str, label: str, value: float | None, **more: Any) -> None:
        """Add a figure, and report it."""
        say(f"  {label}: {'n/a' if value is None else f'{value:,.2f}'}")
        self.report.findings.append(Measured(part=part, label=label, value=value, **more))


def memory(session: Session) -> None:
    """Measure whether memory grows over many turns."""
    plan = session.plan
    what = f"memory over {plan.turns:,} turns, growth after {plan.settled:,}"

    def act(_: int) -> dict[str, float]:
        return session.pool.facts(
            SPECK, plan.dtype, "memory", kv_bytes=plan.kv_bytes_of_turns,
            turns=plan.turns, settled=plan.settled, at_once=max(plan.at_once),
        )  # fmt: skip

    for facts in session.rounds(what, act, times=1):
        then, end = facts["settled_bytes"], facts["end_bytes"]
        readings = {"MiB then": then / 2**20, "MiB at the end": end / 2**20}
        note, growth = f"{facts['cancelled']:,.0f} cancelled", (end / then - 1) * 100
        session.found("memory", what, growth, unit="%", readings=readings, target=GROWTH_PERCENT, note=note)


def cancel(session: Session) -> None:
    """Measure the cost of a cancel, in a reply and in a prefill."""
    plan = session.plan
    for shape in plan.models:
        what = f"{shape.name}, cancel"

        def act(_: int, shape: Shape = shape) -> dict[str, float]:
            return session.pool.facts(
                shape, plan.dtype, "cancels",
                at_once=plan.streams, prompt_tokens=plan.prompt_tokens, long_tokens=plan.long_tokens,
            )  # fmt: skip

        for facts in session.rounds(what, act, times=1):
            longest = facts["longest_prefill_step_s"] * MS
            for label, value, unit, target in (
                ("steps after it, most", facts["decode_steps"], "", STEPS_AFTER),
                ("chunks after it in a prefill, most", facts["prefill_steps"], "", STEPS_AFTER),
                ("longest step in a prefill", longest, "ms", PREFILL_STEP_MS),
            ):
                session.found("cancel", f"{what}: {label}", value, unit=unit, target=target)


def next_turn(session: Session) -> None:
    """Measure how much sooner a conversation's next turn begins than its first."""
    plan = session.plan
    for shape in plan.models:
        what = f"{shape.name}, {plan.long_tokens} tokens of history: first prefill / next turn"

        def act(number: int, shape: Shape = shape) -> dict[str, float]:
            return session.pool.facts(
                shape, plan.dtype, "next_turn", long_tokens=plan.long_tokens, new_tokens=plan.reply_tokens,
                added_tokens=plan.added_tokens, salt=number,
            )  # fmt: skip

        if times := session.rounds(what, act):
            first, following = (median(one[name] for one in times) for name in ("first_s", "next_s"))
            readings = {"first ms": first * MS, "next ms": following * MS}
            note = f"cached {times[-1]['cached_tokens']:.0f} of {times[-1]['prompt_tokens']:.0f} tokens"
            share, target = first / following, NEXT_TURN
            session.found("next-turn", what, share, unit=TIMES, readings=readings, target=target, note=note)


def throughput(session: Session) -> None:
    """Compare the tokens per second of both engines, each with the same replies at once, in turns.

    On a GPU each has the device to itself meanwhile, since each takes all remaining memory.
    """
    plan, pool = session.plan, session.pool
    for shape in plan.models:

        def act(name: Name, number: int, shape: Shape = shape) -> list[float]:
            loads = [
                Load(at_once=at_once, cut_s=plan.cut_s, salt=number, prompt_tokens=plan.prompt_tokens, new_tokens=new)
                for at_once in plan.at_once
                for new in (WARM_UP_TOKENS, plan.new_tokens)
            ]  # fmt: skip
            speeds = [pool.load(name, shape, plan.dtype, load).tokens_per_s for load in loads]
            if pool.device != "cpu":
                pool.dismiss()
            return speeds[1::2]

        rounds: dict[Name, list[list[float]]] = {name: [] for name in Name}
        for number, name in product(range(plan.rounds), Name):
            what = f"{TITLES[name]}, {shape.name}"
            rounds[name] += session.rounds(what, lambda _: act(name, number), times=1)  # noqa: B023
        for place, at_once in enumerate(plan.at_once):
            speeds = {
                TITLES[name]: median(one[place] for one in some) for name, some in rounds.items() if some
            }
            ours, theirs = (speeds.get(TITLES[name]) for name in Name)
            value = ours / theirs if ours and theirs else None
            label = f"{shape.name} {plan.dtype}, {at_once} at once: tokens/s against {TITLES[Name.BATCHING]}"
            target = AGAINST.get(shape.name)
            session.found("throughput", label, value, unit=TIMES, readings=speeds, target=target)


MEASURES: dict[str, Callable[[Session], None]] = {
    "memory": memory,
    "cancel": cancel,
    "next-turn": next_turn,
    "throughput": throughput,
}
"""The figures in the order of measurement, as `--only` names them."""


def run_measurements(plan: Plan, chosen: Sequence[str], pool: WorkerPool) -> Report:
    """Measure; a failure is in the report with its reason."""
    session = Session(plan, pool)
    for name, measure in MEASURES.items():
        if name in chosen:
            say(name)
            measure(session)
    return session.report


def main(options: argparse.Namespace) -> Report:
    """Measure."""
    with assembled() as pool:
        return run_measurements(QUICK if options.quick else FULL, options.only, pool)


if __name__ == "__main__":
    sys.exit(run_lab("tests.bench.engine", __doc__, main, file="engine.json", parts=tuple(MEASURES)))
