"""`make bench-gpu`: the engine, transformers' continuous batching on a CUDA device, and the bound of the device's memory.

Each has the device to itself in turns, since each takes all remaining memory. Not part of `bench-engine`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec

from tests.bench.engine.budget import Budget
from tests.bench.engine.plan import Plan
from tests.bench.engine.records import Bound, BoundFacts, Load, Observed
from tests.bench.engine.registry import TITLES, Name
from tests.bench.engine.report import EngineReport, Figure, Finding, Run, Target, encode
from tests.bench.engine.session import Session
from tests.bench.engine.shapes import LLAMA_8B, QWEN_1B5, Shape
from tests.bench.engine.statistics import MS
from tests.bench.engine.table import table
from tests.bench.engine.throughput import medians, noted
from tests.bench.engine.worker_pool import assembled
from tests.bench.machine import this_machine
from tests.bench.table import TIMES

NO_DEVICE = 2
"""The exit code if there is no CUDA device."""

BOUND_ALONE = Target(0.7)
"""Share of the memory-bandwidth bound, at one stream."""

PLAN = Plan(models=(QWEN_1B5, LLAMA_8B), levels=(1, 8, 64, 256), rounds=2, budget_s=8.5 * 60, cut_s=30.0)
"""A start takes up to a minute, and only one that fits is begun: the whole run stays within ten minutes."""

MIXED = "mixed lengths"

CONTENDERS = (Name.OURS, Name.BATCHING)
PACKAGES = ("midstream", "torch", "transformers", "tokenizers")
RESULTS = Path(__file__).parents[3] / "docs" / "bench" / "gpu.json"


def main() -> int:
    """Measure; return 0 if nothing failed, whatever the figures are, and 2 if there is no CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.gpu", description=__doc__)
    parser.add_argument("--budget", type=float, default=PLAN.budget_s, metavar="SECONDS")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="the file for results (docs/bench/gpu.json)"
    )
    parser.add_argument("--device", default=os.environ.get("DEVICE", "cuda:0"), help="cuda:0 by default")
    options = parser.parse_args()
    name = _device_name(options.device)
    if name is None:
        print(
            f"bench-gpu: PyTorch finds no CUDA device {options.device} here, so there is nothing to measure."
        )
        return NO_DEVICE
    report = conduct(msgspec.structs.replace(PLAN, budget_s=options.budget), name, device=options.device)
    print(f"\n{report.date}, {name}\n{table(report)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_bytes(encode(report))
    page = options.out.with_suffix(".md")
    page.write_text(f"# The engine on {name}, {report.date}\n\n```\n{table(report)}\n```\n", encoding="utf-8")
    print(f"Written: {options.out}, {page}")
    return 1 if report.failures else 0


def conduct(plan: Plan, processor: str, *, device: str) -> EngineReport:
    """Measure a plan on a device; a failure is in the report with its reason. `processor`: the device's name."""
    machine = msgspec.structs.replace(this_machine(PACKAGES), processor=processor)
    with assembled(device=device, most_at_once=plan.fullest) as crew:
        session = Session(plan, crew, Budget(plan.budget_s, time.monotonic), partial(print, flush=True))
        for number in range(plan.rounds):
            for shape in plan.models:
                for name in CONTENDERS:
                    _turn(session, shape, name, number)
    return EngineReport(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        prompt_tokens=plan.prompt_tokens,
        new_tokens=plan.new_tokens,
        findings=(*_compared(session), *session.findings),
        runs=tuple(session.runs),
        failures=tuple(session.failures),
        cuts=tuple(session.cuts),
    )


def _turn(session: Session, shape: Shape, name: Name, number: int) -> None:
    """Give a contender the device: all levels, and for ours the bound; then end it."""
    key = shape.name, name
    if not session.budget.allows(key) or session.budget.left_s <= 0:
        session.cuts.append(f"{TITLES[name]}, {shape.name}: {number} of {session.plan.rounds} rounds")
        return
    began = time.monotonic()
    for at_once in session.plan.levels:
        what = f"{TITLES[name]}, {shape.name}, {at_once} at once"
        if session.once(what, partial(_level, session, shape, name, at_once, number)) is None:
            break
        session.once(f"{what}, {MIXED}", partial(_mixed, session, shape, name, at_once, number))
        if name is Name.OURS and number == 0:
            session.once(f"{what}: bound", partial(_bound, session, shape, at_once))
    session.crew.dismiss()
    session.budget.took(key, time.monotonic() - began)


def _level(session: Session, shape: Shape, name: Name, at_once: int, number: int) -> Run:
    """Measure a load after a short one of its kind, which warms up. Raises MeasurementFailed."""
    job = session.plan.load(at_once, number)
    ask = partial(session.crew.ask, name, shape, session.plan.dtype)
    short: Load = msgspec.structs.replace(job, new_tokens=8)
    ask(short, Observed)
    observed = ask(job, Observed)
    return noted(session, name, (shape, session.plan.dtype, at_once), number, observed)


def _mixed(session: Session, shape: Shape, name: Name, at_once: int, number: int) -> Run:
    """Measure mixed lengths with arrivals, as chats have them. Raises MeasurementFailed."""
    job = session.plan.mixed(at_once, number)
    observed = session.crew.ask(name, shape, session.plan.dtype, job, Observed)
    named = msgspec.structs.replace(shape, name=f"{shape.name}, {MIXED}")
    return noted(session, name, (named, session.plan.dtype, at_once), number, observed)


def _bound(session: Session, shape: Shape, at_once: int) -> BoundFacts:
    plan = session.plan
    job = Bound(at_once=at_once, prompt_tokens=plan.prompt_tokens, new_tokens=plan.new_tokens)
    facts = session.crew.ask(Name.OURS, shape, plan.dtype, job, BoundFacts)
    session.found(
        Finding(
            figure=Figure.BOUND,
            label=f"{shape.name}, {at_once} at once: weights and KV at the memory's bandwidth / step",
            value=facts.share,
            readings={"step ms": facts.step_s * MS, "weights ms": facts.matrices_s * MS},
            target=BOUND_ALONE if at_once == 1 else None,
            note=f"memory {facts.bandwidth / 1e9:,.0f} GB/s",
        )
    )
    return facts


def _compared(session: Session) -> list[Finding]:
    """Return ours as a multiple of the peer's, for each measured model and level."""
    groups = dict.fromkeys((run.model, run.dtype, run.at_once) for run in session.runs)
    found = []
    for group in groups:
        speeds = medians(session.runs, group)
        ours, peer = speeds.get(Name.OURS), speeds.get(Name.BATCHING)
        found.append(
            Finding(
                figure=Figure.THROUGHPUT,
                label=f"{group[0]} {group[1]}, {group[2]} at once: tokens/s against {TITLES[Name.BATCHING]}",
                value=ours / peer if ours and peer else None,
                unit=TIMES,
                readings=speeds,
            )
        )
    return found


def _device_name(device: str) -> str | None:
    """Return the name of a CUDA device, such as `cuda:1`; None if there is no such device."""
    import torch  # noqa: PLC0415 - `--help` need not wait for it

    named = torch.device(device)
    index = named.index or 0
    return (
        torch.cuda.get_device_name(index)
        if named.type == "cuda" and index < torch.cuda.device_count()
        else None
    )


if __name__ == "__main__":
    sys.exit(main())
