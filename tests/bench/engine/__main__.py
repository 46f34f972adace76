"""`make bench-engine`: the engine and its peers, in turns; a table with targets, and JSON.

The quick figures come first: rounds of the throughput take the remaining time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
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
    table,
)
from tests.bench.servers import MIDSTREAM, running

MODELS = {shape.name: shape for shape in (TINY, SMALL)}
DTYPES = ("bfloat16", "float32")
PEERS = (Name.BATCHING, Name.THREADS)
CONTENT = "xyz" * 16
"""Letters that these tokenizers never join: with the template about 64 tokens, as long as the engine's own prompts."""
SOCKETS_S = 120.0
WARM_UP_TOKENS = 8

# The targets on two cores.
AGAINST = {
    "tiny": {Name.BATCHING: Target(3.0), Name.THREADS: Target(10.0)},
    "small": {Name.BATCHING: Target(2.0), Name.THREADS: Target(8.0)},
}
"""Tokens/s at the fullest level, as a multiple of a peer's."""
FULLEST = 32
ALONE = {"tiny": Target(1.8), "small": Target(1.7)}
"""Tokens/s of one stream, as a multiple of the better peer's; in bfloat16."""
STEADY = at_most(1.5)
"""p99 / p50 of the gaps between tokens, with no arrivals."""
PREFILL_GAP_MS = {"tiny": at_most(150.0)}
"""The longest gap of running streams while a long prompt is computed, in milliseconds."""
NEXT_TURN = Target(15.0)
"""Time to the first token on a long history, first turn divided by next turn."""
STEPS_AFTER = at_most(1.0)
"""Steps after a cancel was read; in a prefill, chunks."""
PREFILL_STEP_MS = at_most(100.0)
"""The longest step that a cancel may have to wait for, in milliseconds."""
BOUND = Target(0.5)
"""(matrix products + keys and values at measured bandwidth) / step time."""
GROWTH_PERCENT = at_most(2.0)
"""Growth of resident memory once it has settled, in percent."""
OVER_SOCKETS = {"tiny": Target(0.75), "small": Target(0.9)}
"""Tokens/s over sockets, as a share of the engine's alone."""

T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes. `cut_s`: limit of a load; `repeat_s`: a measurement that took longer is not repeated. `throughput_share`
    of the budget is reserved for the throughput, as far as the first rounds of all other figures leave it.

    `streams` run beside what is measured, `long_tokens` is a long prompt.
    """

    models: tuple[Shape, ...] = (TINY, SMALL)
    dtype: str = "bfloat16"
    rounds: int = 3
    budget_s: float = 12 * 60.0
    throughput_share: float = 0.6
    cut_s: float = 40.0
    repeat_s: float = 20.0
    levels: tuple[int, ...] = (1, 4, 16, 32)
    prompt_tokens: int = 64
    new_tokens: int = 128
    mixed_tokens: tuple[int, int] = (200, 8000)
    """The shortest and the longest prompt of mixed lengths."""
    streams: int = 16
    steady_tokens: int = 192
    long_tokens: int = 4096
    reply_tokens: int = 32
    added_tokens: int = 32
    turns: int = 10_000
    settled: int = 1_000
    sockets: int = 32
    kv_bytes_of_turns: int = 4 * 2**20
    """Memory for keys and values in the test of growth: it is full before the first reading."""

    def load(self, at_once: int, salt: int, **changes: int) -> Load:
        """Return a load of the throughput, with prompts of its own for each round, or one with other sizes."""
        sizes = {"prompt_tokens": self.prompt_tokens, "new_tokens": self.new_tokens} | changes
        return Load(at_once=at_once, cut_s=self.cut_s, salt=salt, **sizes)


FULL = Plan()
QUICK = Plan(
    models=(TINY,), rounds=1, budget_s=120.0, cut_s=15.0, levels=(1, 4), new_tokens=16, streams=4,
    steady_tokens=16, long_tokens=400, reply_tokens=8, turns=200, settled=50, sockets=4,
)  # fmt: skip
"""A plan that only shows that everything works."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One load of one contender: `at_once` streams of a model, in a round. `cut`: it was stopped before its end."""

    model: str
    contender: Name
    at_once: int
    round: int
    tokens_per_s: float
    cut: bool = False


class Session:
    """One run of the benchmark: the remaining time, and the report, which its measurements fill."""

    def __init__(self, plan: Plan, pool: WorkerPool, *, kept_s: float = 0.0) -> None:
        """`kept_s`: seconds that repetitions leave to the throughput."""
        self.plan, self.pool = plan, pool
        self.runs: list[Run] = []
        self.report = Report(details={"plan": plan, "runs": self.runs})
        self._kept_s = kept_s
        self._end = time.monotonic() + plan.budget_s
        self.took_s: dict[Hashable, float] = {}
        """The last duration of each measurement, without starts of processes."""

    @property
    def left_s(self) -> float:
        """Remaining seconds; negative once they are used up."""
        return self._end - time.monotonic()

    def once(self, what: str, act: Callable[[], T], *, key: Hashable = None) -> T | None:
        """Run a measurement and return its result. A failure is noted with its reason, and gives None."""
        started, starting_s = time.monotonic(), self.pool.starting_s
        try:
            return act()
        except MeasurementFailed as failure:
            self.report.failures.append(Failure(what, str(failure)))
            say(f"  FAILED: {what}: {failure}")
            return None
        finally:
            self.took_s[key or what] = time.monotonic() - started - (self.pool.starting_s - starting_s)

    def wants_again(self, key: Hashable, *, kept_s: float = 0.0) -> bool:
        """Return whether a measurement was short enough to be repeated, and fits; one that was never done always fits."""
        took_s = self.took_s.get(key)
        return took_s is None or took_s <= min(self.plan.repeat_s, self.left_s - kept_s)

    def turns(self, what: str, who: Sequence[str], act: Callable[[str, int], T]) -> dict[str, list[T]]:
        """Give each its turn in every round that the budget allows; one that fails gets no further turn."""
        found: dict[str, list[T]] = {one: [] for one in who}
        failed: set[str] = set()
        for number in range(self.plan.rounds):
            for one in who:
                key = what, one
                if one in failed or (number and not self.wants_again(key, kept_s=self._kept_s)):
                    continue
                failures = len(self.report.failures)
                result = self.once(f"{one}, {what}", partial(act, one, number), key=key)
                if len(self.report.failures) > failures:
                    failed.add(one)
                elif result is not None:
                    found[one].append(result)
        for one, results in found.items():
            if len(results) < self.plan.rounds and one not in failed:
                self.report.cuts.append(f"{one}, {what}: {len(results)} of {self.plan.rounds} rounds")
        return found

    def found(self, part: str, label: str, value: float | None, **more: object) -> None:
        """Add a figure, and report it."""
        say(f"  {label}: {'n/a' if value is None else f'{value:,.2f}'}")
        self.report.findings.append(
            msgspec.convert({"part": part, "label": label, "value": value, **more}, Measured)
        )

    def noted(self, name: Name, model: str, at_once: int, number: int, observed: Observed) -> None:
        """Note a contender's result for a load."""
        speed = tokens_per_s(observed)
        run = Run(
            model=model, contender=name, at_once=at_once, round=number, tokens_per_s=speed, cut=observed.cut
        )
        self.runs.append(run)
        what = f"{TITLES[name]}, {model}, {at_once} at once"
        say(f"  round {number + 1}, {what}: {run.tokens_per_s:,.0f} tokens/s{' (cut)' * run.cut}")


def memory(session: Session) -> None:
    """Measure whether memory grows over many turns."""
    plan = session.plan
    what = f"memory over {plan.turns:,} turns, growth after {plan.settled:,}"
    job = OwnJob(measure=OwnMeasure.MEMORY, turns=plan.turns, settled=plan.settled, at_once=max(plan.levels))
    ask = partial(session.pool.facts, SPECK, plan.dtype, job, kv_bytes=plan.kv_bytes_of_turns)
    if facts := session.once(what, ask):
        then, end = facts["settled_bytes"], facts["end_bytes"]
        readings = {"MiB then": then / 2**20, "MiB at the end": end / 2**20}
        note = f"{facts['cancelled']:,.0f} cancelled"
        growth = (end / then - 1) * 100
        session.found("memory", what, growth, unit="%", readings=readings, target=GROWTH_PERCENT, note=note)


def cancel(session: Session) -> None:
    """Measure the cost of a cancel, in a reply and in a prefill."""
    plan = session.plan
    job = OwnJob(
        measure=OwnMeasure.CANCEL,
        at_once=plan.streams,
        prompt_tokens=plan.prompt_tokens,
        long_tokens=plan.long_tokens,
    )
    for shape in plan.models:
        what = f"{shape.name}, cancel"
        if facts := session.once(what, partial(session.pool.facts, shape, plan.dtype, job)):
            session.found(
                "cancel", f"{what}: steps after it, most", facts["decode_steps"], target=STEPS_AFTER
            )
            chunks = f"{what}: chunks after it in a prefill, most"
            session.found("cancel", chunks, facts["prefill_steps"], target=STEPS_AFTER)
            longest = facts["longest_prefill_step_s"] * MS
            session.found(
                "cancel", f"{what}: longest step in a prefill", longest, unit="ms", target=PREFILL_STEP_MS
            )


def next_turn(session: Session) -> None:
    """Measure how much sooner a conversation's next turn begins than its first."""
    plan = session.plan
    for shape in plan.models:
        what = f"{shape.name}, {plan.long_tokens} tokens of history: first prefill / next turn"

        def act(_who: str, number: int, shape: Shape = shape) -> dict[str, float]:
            job = OwnJob(
                measure=OwnMeasure.NEXT_TURN, long_tokens=plan.long_tokens, new_tokens=plan.reply_tokens,
                prompt_tokens=plan.added_tokens, salt=number,
            )  # fmt: skip
            return session.pool.facts(shape, plan.dtype, job)

        if times := session.turns(what, (TITLES[Name.OURS],), act)[TITLES[Name.OURS]]:
            first, following = (median(one[name] for one in times) for name in ("first_s", "next_s"))
            readings = {"first ms": first * MS, "next ms": following * MS}
            note = f"cached {times[-1]['cached_tokens']:.0f} of {times[-1]['prompt_tokens']:.0f} tokens"
            share = first / following
            session.found(
                "next-turn", what, share, unit=TIMES, readings=readings, target=NEXT_TURN, note=note
            )


def bound(session: Session) -> None:
    """Compare a full step with its matrix products and the reading of its keys and values."""
    for shape in session.plan.models:
        at_once = max(session.plan.levels)
        what = f"{shape.name} {session.plan.dtype}, {at_once} at once: bound / step"
        measured_bound(session, shape, at_once, what, BOUND if shape is SMALL else None)


def measured_bound(session: Session, shape: Shape, at_once: int, what: str, target: Target | None) -> None:
    """Measure the bound of a step of ours, as a share of its time."""
    plan = session.plan
    job = OwnJob(
        measure=OwnMeasure.BOUND,
        at_once=at_once,
        prompt_tokens=plan.prompt_tokens,
        new_tokens=plan.new_tokens,
    )
    if facts := session.once(what, partial(session.pool.facts, shape, plan.dtype, job)):
        step_s, matrices_s, bandwidth = facts["step_s"], facts["matrices_s"], facts["bandwidth"]
        share = (matrices_s + facts["kv_bytes"] / bandwidth) / step_s
        readings = {"step ms": step_s * MS, "matrix products ms": matrices_s * MS}
        note = f"products alone {matrices_s / step_s:.2f}, memory {bandwidth / 1e9:,.1f} GB/s"
        session.found("bound", what, share, readings=readings, target=target, note=note)


def steady(session: Session) -> None:
    """Measure the gaps between tokens while nothing arrives, long enough for percentiles."""
    plan = session.plan
    for shape in plan.models:
        what = f"{shape.name}, {plan.streams} streams: gap p99 / p50"
        changes = {"new_tokens": plan.steady_tokens}
        readings = _gaps(session, shape, what, steadiness, changes)
        session.found("steady", what, readings.get(TITLES[Name.OURS]), readings=readings, target=STEADY)


def prefill_gap(session: Session) -> None:
    """Measure how long running streams, which outlast the prefill, wait for another's long prompt."""
    plan = session.plan
    changes = {"new_tokens": plan.new_tokens * 8, "intruder_tokens": plan.long_tokens}
    for shape in (one for one in plan.models if one.name in PREFILL_GAP_MS):
        what = f"{shape.name}, {plan.streams} streams: longest gap in a prefill of {plan.long_tokens}"
        readings = _gaps(session, shape, what, longest_gap_ms, changes)
        ours, target = readings.get(TITLES[Name.OURS]), PREFILL_GAP_MS[shape.name]
        session.found("prefill-gap", what, ours, readings=readings, unit="ms", target=target)


def _gaps(
    session: Session,
    shape: Shape,
    what: str,
    reading: Callable[[Observed], float | None],
    changes: dict[str, int],
) -> dict[str, float]:
    """Return the medians of one reading over the rounds, of ours and its best peer, in turns."""
    contenders = {TITLES[name]: name for name in (Name.OURS, Name.BATCHING)}

    def act(title: str, number: int) -> float | None:
        load = session.plan.load(session.plan.streams, number, **changes)
        return reading(session.pool.load(contenders[title], shape, session.plan.dtype, load))

    found = session.turns(what, list(contenders), act)
    known = {title: [value for value in some if value is not None] for title, some in found.items()}
    return {title: median(values) for title, values in known.items() if values}


def sockets(session: Session) -> None:
    """Measure, for each model, the engine alone and a server of the same model, in turns."""
    plan = session.plan
    for shape in plan.models:
        what = f"{shape.name}, {plan.sockets} sockets: tokens/s against the engine alone"
        pairs = session.once(what, partial(_pairs, session, shape, what))
        if pairs:
            alone, over = (median(values) for values in zip(*pairs, strict=True))
            readings = {"alone": alone, "over sockets": over}
            target = OVER_SOCKETS.get(shape.name)
            session.found("sockets", what, over / alone, readings=readings, target=target)


def _pairs(session: Session, shape: Shape, what: str) -> list[tuple[float, float]]:
    """Return tokens/s alone and over sockets, measured one directly after the other. Raises MeasurementFailed."""
    plan, pool = session.plan, session.pool
    with running(MIDSTREAM, model=str(pool.model(shape)), device="cpu", dtype=plan.dtype) as (url, pid):
        _over_sockets(plan, url, pid, WARM_UP_TOKENS)

        def act(_who: str, number: int) -> tuple[float, float]:
            alone = tokens_per_s(pool.load(Name.OURS, shape, plan.dtype, plan.load(plan.sockets, number)))
            return alone, _over_sockets(plan, url, pid, plan.new_tokens)

        return session.turns(f"{what}, rounds", (TITLES[Name.OURS],), act)[TITLES[Name.OURS]]


def _over_sockets(plan: Plan, url: str, pid: int, tokens: int) -> float:
    """Return the tokens per second that all clients together read. Raises MeasurementFailed."""
    job = Job(
        api=ServerApi.WEBSOCKET, url=url, model="", pid=pid, clients=plan.sockets, max_new_tokens=tokens,
        limit_s=SOCKETS_S, prompt=CONTENT, temperature=TEMPERATURE, top_p=TOP_P,
    )  # fmt: skip
    found = figures(observe(job))
    if found[TOKENS_PER_REPLY] != tokens:
        raise MeasurementFailed(f"a reply had {found[TOKENS_PER_REPLY]:.0f} of {tokens} tokens")
    return found[TOKENS_PER_S]


def throughput(session: Session) -> None:
    """Give every contender its turn at every level, round after round."""
    plan = session.plan
    for number in range(plan.rounds):
        for shape in plan.models:
            for at_once in plan.levels:
                for name in Name:
                    key = name, shape.name, at_once
                    if number and not session.wants_again(key):
                        continue
                    what = f"{TITLES[name]}, {shape.name}, {at_once} at once"
                    load = partial(session.pool.load, name, shape, plan.dtype, plan.load(at_once, number))
                    if (observed := session.once(what, load, key=key)) is not None:
                        session.noted(name, shape.name, at_once, number, observed)
    session.report.cuts += _cuts(session.runs, plan.rounds)
    session.report.findings += compared(session.runs, plan.dtype)


def compared(runs: Sequence[Run], dtype: str) -> Iterator[Measured]:
    """Return, for each model and level, our ratio to the peers, of the medians; at the fullest level to each of them. Pure."""
    for model, at_once in dict.fromkeys((run.model, run.at_once) for run in runs):
        speeds = medians(runs, model, at_once)
        readings = {TITLES[name]: speed for name, speed in speeds.items()}
        place = f"{model} {dtype}, {at_once} at once: tokens/s against"
        if at_once >= FULLEST:
            against = AGAINST.get(model, {})
            rows = [(TITLES[peer], [peer], against.get(peer)) for peer in PEERS]
        else:
            rows = [("the better peer", list(PEERS), ALONE.get(model) if at_once == 1 else None)]
        for who, peers, target in rows:
            value = ratio(speeds, peers)
            yield Measured(
                part="throughput",
                label=f"{place} {who}",
                value=value,
                unit=TIMES,
                readings=readings,
                target=target,
            )


def ratio(speeds: dict[Name, float], peers: Iterable[Name]) -> float | None:
    """Return ours as a multiple of the best of these peers; None if nothing is known of one side."""
    best = max((speeds.get(peer, 0.0) for peer in peers), default=0.0)
    return speeds[Name.OURS] / best if Name.OURS in speeds and best else None


def medians(runs: Iterable[Run], model: str, at_once: int) -> dict[Name, float]:
    """Return the median tokens/s of each contender for a model and level."""
    found: dict[Name, list[float]] = {}
    for run in runs:
        if (run.model, run.at_once) == (model, at_once):
            found.setdefault(run.contender, []).append(run.tokens_per_s)
    return {name: median(values) for name, values in found.items()}


def _cuts(runs: Sequence[Run], rounds: int) -> Iterator[str]:
    """List the loads that were measured in fewer rounds than the others, or not to their end."""
    for one in dict.fromkeys((run.contender, run.model, run.at_once) for run in runs):
        same = [run for run in runs if (run.contender, run.model, run.at_once) == one]
        why = [f"{len(same)} of {rounds} rounds"] if len(same) < rounds else []
        why += ["stopped before its end"] if any(run.cut for run in same) else []
        if why:
            yield f"{TITLES[one[0]]}, {one[1]}, {one[2]} at once: {', '.join(why)}"


MEASURES: dict[str, Callable[[Session], None]] = {
    "memory": memory,
    "cancel": cancel,
    "next-turn": next_turn,
    "bound": bound,
    "steady": steady,
    "prefill-gap": prefill_gap,
    "sockets": sockets,
    "throughput": throughput,
}
"""The figures in the order of measurement, as `--only` names them."""


def run_measurements(plan: Plan, chosen: Sequence[str], pool: WorkerPool) -> Report:
    """Measure; a failure is in the report with its reason."""
    kept_s = plan.budget_s * plan.throughput_share if "throughput" in chosen else 0.0
    session = Session(plan, pool, kept_s=kept_s)
    say(str(session.report.machine))
    for name, measure in MEASURES.items():
        if name in chosen:
            say(f"{name}: {session.left_s:.0f} s left")
            measure(session)
    return session.report


def main() -> int:
    """Measure; return 0 if nothing failed, whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny round, to see that all of it works")
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="FIGURE")
    parser.add_argument("--model", nargs="+", choices=list(MODELS), help="random weights to measure (both)")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--rounds", type=int, help=f"of each measurement ({FULL.rounds})")
    parser.add_argument(
        "--budget", type=float, metavar="SECONDS", help=f"for all of it ({FULL.budget_s:.0f})"
    )
    parser.add_argument("--out", type=Path, help="folder for results (docs/bench; with --quick: none)")
    given = parser.parse_args()
    chosen = {
        "models": given.model and tuple(MODELS[name] for name in given.model),
        "dtype": given.dtype,
        "rounds": given.rounds,
        "budget_s": given.budget,
    }
    named = {name: value for name, value in chosen.items() if value is not None}
    plan = msgspec.structs.replace(QUICK if given.quick else FULL, **named)
    with assembled() as pool:
        report = run_measurements(plan, given.only, pool)
    print(f"\n{table(report)}")
    out = given.out or (None if given.quick else RESULTS)
    report.write(out and out / "engine.json")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
