"""`make bench-engine`: the engine, and transformers' continuous batching in turns with it; a table with targets, and JSON."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from tests.bench.clients import ServerApi
from tests.bench.engine.load import (
    TEMPERATURE,
    TOP_P,
    Load,
    Observed,
    longest_gap_ms,
    steadiness,
    tokens_per_s,
)
from tests.bench.engine.shapes import SMALL, SPECK, TINY, Shape
from tests.bench.engine.worker import TITLES, Name, OwnJob, OwnMeasure, WorkerPool, assembled
from tests.bench.load_generator import TOKENS_PER_REPLY, TOKENS_PER_S, Job, figures, observe
from tests.bench.report import (
    MS,
    RESULTS,
    TIMES,
    Failure,
    Measured,
    MeasurementFailed,
    Report,
    Target,
    at_most,
    say,
)
from tests.bench.servers import MIDSTREAM, running

MODELS = {shape.name: shape for shape in (TINY, SMALL)}
CONTENT = "xyz" * 16
"""Letters that these tokenizers never join: with the template about 64 tokens, as long as the engine's own prompts."""
SOCKETS_S = 120.0
WARM_UP_TOKENS = 8

# The targets on two cores.
AGAINST = {"tiny": Target(3.0), "small": Target(3.6)}
"""Tokens/s, as a multiple of continuous batching's."""
STEADY = at_most(1.5)
"""p99 / p50 of the gaps between tokens, with no arrivals."""
PREFILL_GAP_MS = {"tiny": at_most(80.0)}
"""The longest gap of running streams while a long prompt is computed, in milliseconds."""
NEXT_TURN = Target(40.0)
"""Time to the first token on a long history, first turn divided by next turn."""
STEPS_AFTER = at_most(1.0)
"""Steps after a cancel was read; in a prefill, chunks."""
PREFILL_STEP_MS = at_most(100.0)
"""The longest step that a cancel may have to wait for, in milliseconds."""
GROWTH_PERCENT = at_most(0.5)
"""Growth of resident memory once it has settled, in percent."""
OVER_SOCKETS = {"tiny": Target(0.75), "small": Target(0.92)}
"""Tokens/s over sockets, as a share of the engine's alone."""

T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes. `cut_s`: limit of a load. `streams` run beside what is measured, `long_tokens` is a long prompt."""

    models: tuple[Shape, ...] = (TINY, SMALL)
    dtype: str = "bfloat16"
    rounds: int = 3
    cut_s: float = 40.0
    at_once: int = 32
    prompt_tokens: int = 64
    new_tokens: int = 128
    streams: int = 16
    steady_tokens: int = 192
    long_tokens: int = 4096
    reply_tokens: int = 32
    added_tokens: int = 32
    turns: int = 10_000
    settled: int = 1_000
    kv_bytes_of_turns: int = 4 * 2**20
    """Memory for keys and values in the test of growth: it is full before the first reading."""

    def load(self, at_once: int, salt: int, **changes: int) -> Load:
        """Return a load with prompts of its own for each round."""
        sizes = {"prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens} | changes
        return Load(at_once=at_once, cut_s=self.cut_s, salt=salt, **sizes)


FULL = Plan()
QUICK = Plan(
    models=(TINY,), rounds=1, cut_s=15.0, at_once=4, new_tokens=16, streams=4, steady_tokens=16, long_tokens=400,
    reply_tokens=8, turns=200, settled=50,
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
                self.report.failures.append(Failure(what, str(failure)))
                say(f"  FAILED: {what}: {failure}")
                break
        return found

    def found(self, part: str, label: str, value: float | None, **more: object) -> None:
        """Add a figure, and report it."""
        say(f"  {label}: {'n/a' if value is None else f'{value:,.2f}'}")
        self.report.findings.append(
            msgspec.convert({"part": part, "label": label, "value": value, **more}, Measured)
        )

    def both(self, what: str, shape: Shape, load: Callable[[int], Load], reading: Callable[[Observed], float | None]) -> dict[str, float]:  # fmt: skip
        """Return the medians of one reading of both engines, in turns, by their titles."""

        def act(number: int) -> dict[Name, float | None]:
            return {
                name: reading(self.pool.load(name, shape, self.plan.dtype, load(number))) for name in Name
            }

        rounds = self.rounds(what, act)
        values = {name: [value for one in rounds if (value := one[name]) is not None] for name in Name}
        return {TITLES[name]: median(some) for name, some in values.items() if some}


def memory(session: Session) -> None:
    """Measure whether memory grows over many turns."""
    plan = session.plan
    what = f"memory over {plan.turns:,} turns, growth after {plan.settled:,}"
    job = OwnJob(measure=OwnMeasure.MEMORY, turns=plan.turns, settled=plan.settled, at_once=plan.at_once)

    def act(_: int) -> dict[str, float]:
        return session.pool.facts(SPECK, plan.dtype, job, kv_bytes=plan.kv_bytes_of_turns)

    for facts in session.rounds(what, act, times=1):
        then, end = facts["settled_bytes"], facts["end_bytes"]
        readings = {"MiB then": then / 2**20, "MiB at the end": end / 2**20}
        note, growth = f"{facts['cancelled']:,.0f} cancelled", (end / then - 1) * 100
        session.found("memory", what, growth, unit="%", readings=readings, target=GROWTH_PERCENT, note=note)


def cancel(session: Session) -> None:
    """Measure the cost of a cancel, in a reply and in a prefill."""
    plan = session.plan
    job = OwnJob(
        measure=OwnMeasure.CANCEL, at_once=plan.streams, prompt_tokens=plan.prompt_tokens, long_tokens=plan.long_tokens
    )  # fmt: skip
    for shape in plan.models:
        what = f"{shape.name}, cancel"

        def act(_: int, shape: Shape = shape) -> dict[str, float]:
            return session.pool.facts(shape, plan.dtype, job)

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
            job = OwnJob(
                measure=OwnMeasure.NEXT_TURN, long_tokens=plan.long_tokens, new_tokens=plan.reply_tokens,
                prompt_tokens=plan.added_tokens, salt=number,
            )  # fmt: skip
            return session.pool.facts(shape, plan.dtype, job)

        if times := session.rounds(what, act):
            first, following = (median(one[name] for one in times) for name in ("first_s", "next_s"))
            readings = {"first ms": first * MS, "next ms": following * MS}
            note = f"cached {times[-1]['cached_tokens']:.0f} of {times[-1]['prompt_tokens']:.0f} tokens"
            share, target = first / following, NEXT_TURN
            session.found("next-turn", what, share, unit=TIMES, readings=readings, target=target, note=note)


def steady(session: Session) -> None:
    """Measure the gaps between tokens while nothing arrives, long enough for percentiles."""
    plan = session.plan
    for shape in plan.models:
        what = f"{shape.name}, {plan.streams} streams: gap p99 / p50"
        load = partial(plan.load, plan.streams, new_tokens=plan.steady_tokens)
        readings = session.both(what, shape, load, steadiness)
        session.found("steady", what, readings.get(TITLES[Name.OURS]), readings=readings, target=STEADY)


def prefill_gap(session: Session) -> None:
    """Measure how long running streams, which outlast the prefill, wait for another's long prompt."""
    plan = session.plan
    changes = {"new_tokens": plan.new_tokens * 8, "intruder_tokens": plan.long_tokens}
    for shape in (one for one in plan.models if one.name in PREFILL_GAP_MS):
        what = f"{shape.name}, {plan.streams} streams: longest gap in a prefill of {plan.long_tokens}"
        readings = session.both(what, shape, partial(plan.load, plan.streams, **changes), longest_gap_ms)
        ours, target = readings.get(TITLES[Name.OURS]), PREFILL_GAP_MS[shape.name]
        session.found("prefill-gap", what, ours, readings=readings, unit="ms", target=target)


def sockets(session: Session) -> None:
    """Measure, for each model, the engine alone and a server of the same model, in turns."""
    plan, pool = session.plan, session.pool
    for shape in plan.models:
        what = f"{shape.name}, {plan.at_once} sockets: tokens/s against the engine alone"
        try:
            server = running(MIDSTREAM, model=str(pool.model(shape)), device="cpu", dtype=plan.dtype)
            with server as url:
                _over_sockets(plan, url, WARM_UP_TOKENS)

                def act(number: int, shape: Shape = shape, url: str = url) -> tuple[float, float]:
                    load = plan.load(plan.at_once, number)
                    alone = tokens_per_s(pool.load(Name.OURS, shape, plan.dtype, load))
                    return alone, _over_sockets(plan, url, plan.new_tokens)

                pairs = session.rounds(what, act)
        except MeasurementFailed as failure:
            session.report.failures.append(Failure(what, str(failure)))
            continue
        if pairs:
            alone, over = (median(values) for values in zip(*pairs, strict=True))
            readings, target = {"alone": alone, "over sockets": over}, OVER_SOCKETS.get(shape.name)
            session.found("sockets", what, over / alone, readings=readings, target=target)


def _over_sockets(plan: Plan, url: str, tokens: int) -> float:
    """Return the tokens per second that all clients together read. Raises MeasurementFailed."""
    job = Job(
        api=ServerApi.WEBSOCKET, url=url, model="", clients=plan.at_once, max_new_tokens=tokens,
        limit_s=SOCKETS_S, prompt=CONTENT, temperature=TEMPERATURE, top_p=TOP_P,
    )  # fmt: skip
    found = figures(observe(job))
    if found[TOKENS_PER_REPLY] != tokens:
        raise MeasurementFailed(f"a reply had {found[TOKENS_PER_REPLY]:.0f} of {tokens} tokens")
    return found[TOKENS_PER_S]


def throughput(session: Session) -> None:
    """Compare the tokens per second."""
    for shape in session.plan.models:
        compared(session, shape, session.plan.at_once, AGAINST.get(shape.name))


def compared(session: Session, shape: Shape, at_once: int, target: Target | None) -> None:
    """Give both engines so many replies at once, in turns: our ratio to continuous batching, of the medians."""
    plan = session.plan
    what = f"{shape.name} {plan.dtype}, {at_once} at once: tokens/s against {TITLES[Name.BATCHING]}"
    speeds = session.both(what, shape, partial(plan.load, at_once), tokens_per_s)
    ours, theirs = (speeds.get(TITLES[name]) for name in Name)
    value = ours / theirs if ours and theirs else None
    session.found("throughput", what, value, unit=TIMES, readings=speeds, target=target)


MEASURES: dict[str, Callable[[Session], None]] = {
    "memory": memory,
    "cancel": cancel,
    "next-turn": next_turn,
    "steady": steady,
    "prefill-gap": prefill_gap,
    "sockets": sockets,
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


def main() -> int:
    """Measure; return 0 if nothing failed, whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny round, to see that all of it works")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="FIGURE")
    parser.add_argument(
        "--model", nargs="+", choices=list(MODELS), default=list(MODELS), help="random weights"
    )
    parser.add_argument(
        "--out", type=Path, help="file for results (docs/bench/engine.json; with --quick: none)"
    )
    given = parser.parse_args()
    plan = (
        QUICK
        if given.quick
        else msgspec.structs.replace(FULL, models=tuple(MODELS[name] for name in given.model))
    )
    with assembled() as pool:
        report = run_measurements(plan, given.only, pool)
    report.conclude(given.out or (None if given.quick else RESULTS / "engine.json"))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
