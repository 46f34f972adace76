"""`make bench-gpu`: the engine, transformers' continuous batching on a CUDA device, and the bound of the device's memory.

Each has the device to itself in turns, since each takes all remaining memory. Not part of `bench-engine`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

from tests.bench.engine.__main__ import Plan, Session, measured_bound, medians, ratio
from tests.bench.engine.shapes import LLAMA_8B, QWEN_1B5, Shape
from tests.bench.engine.worker import TITLES, Name, assembled
from tests.bench.report import RESULTS, TIMES, Measured, Report, Target, table

NO_DEVICE = 2
"""The exit code if there is no CUDA device."""
BOUND_ALONE = Target(0.7)
"""Share of the memory-bandwidth bound, at one stream."""
PLAN = Plan(models=(QWEN_1B5, LLAMA_8B), levels=(1, 8, 64, 256), rounds=2, budget_s=8.5 * 60, cut_s=30.0)
"""A start takes up to a minute, and only one that fits is begun: the whole run stays within ten minutes."""
MIXED = "mixed lengths"


def main() -> int:
    """Measure; return 0 if nothing failed, whatever the figures are, and 2 if there is no CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.engine.gpu", description=__doc__)
    parser.add_argument("--budget", type=float, default=PLAN.budget_s, metavar="SECONDS")
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "gpu.json", help="file for results (docs/bench/gpu.json)"
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
    report.write(options.out)
    return 1 if report.failures else 0


def conduct(plan: Plan, processor: str, *, device: str) -> Report:
    """Measure a plan on a device; a failure is in the report with its reason. `processor`: the device's name."""
    with assembled(device=device, most_at_once=max(plan.levels)) as pool:
        session = Session(plan, pool)
        session.report.machine = msgspec.structs.replace(session.report.machine, processor=processor)
        for number in range(plan.rounds):
            for shape in plan.models:
                for name in (Name.OURS, Name.BATCHING):
                    _turn(session, shape, name, number)
    session.report.findings[:0] = _compared(session)
    return session.report


def _turn(session: Session, shape: Shape, name: Name, number: int) -> None:
    """Give a contender the device: all levels, each alike and of mixed lengths, and for ours the bound; then end it."""
    plan, key = session.plan, (shape.name, name)
    if session.left_s <= session.took_s.get(key, 0.0):
        session.report.cuts.append(f"{TITLES[name]}, {shape.name}: {number} of {plan.rounds} rounds")
        return
    began = time.monotonic()
    for at_once in plan.levels:
        what = f"{TITLES[name]}, {shape.name}, {at_once} at once"
        if session.once(what, partial(_level, session, shape, name, at_once, number)) is None:
            break
        session.once(f"{what}, {MIXED}", partial(_mixed, session, shape, name, at_once, number))
        if name is Name.OURS and number == 0:
            label = f"{shape.name}, {at_once} at once: weights and KV at the memory's bandwidth / step"
            measured_bound(session, shape, at_once, label, BOUND_ALONE if at_once == 1 else None)
    session.pool.dismiss()
    session.took_s[key] = time.monotonic() - began


def _level(session: Session, shape: Shape, name: Name, at_once: int, number: int) -> bool:
    """Measure a load after a short one of its kind, which warms up. Raises MeasurementFailed."""
    plan, ask = session.plan, partial(session.pool.load, name, shape, session.plan.dtype)
    ask(plan.load(at_once, number, new_tokens=8))
    session.noted(name, shape.name, at_once, number, ask(plan.load(at_once, number)))
    return True


def _mixed(session: Session, shape: Shape, name: Name, at_once: int, number: int) -> None:
    """Measure mixed lengths with arrivals, as chats have them: for each ended reply a request comes, as many again in all.

    Raises MeasurementFailed.
    """
    shortest, longest = session.plan.mixed_tokens
    load = session.plan.load(
        at_once, number, prompt_tokens=shortest, longest_tokens=longest, arriving=at_once
    )
    observed = session.pool.load(name, shape, session.plan.dtype, load)
    session.noted(name, f"{shape.name}, {MIXED}", at_once, number, observed)


def _compared(session: Session) -> list[Measured]:
    """Return ours as a multiple of the peer's, for each measured model and level."""
    found = []
    for model, at_once in dict.fromkeys((run.model, run.at_once) for run in session.runs):
        speeds = medians(session.runs, model, at_once)
        label = f"{model} {session.plan.dtype}, {at_once} at once: tokens/s against {TITLES[Name.BATCHING]}"
        readings = {TITLES[name]: speed for name, speed in speeds.items()}
        value = ratio(speeds, [Name.BATCHING])
        found.append(Measured(part="throughput", label=label, value=value, unit=TIMES, readings=readings))
    return found


def _device_name(device: str) -> str | None:
    """Return the name of a CUDA device, such as `cuda:1`; None if there is no such device."""
    import torch  # noqa: PLC0415 - `--help` need not wait for it

    named = torch.device(device)
    index = named.index or 0
    is_there = named.type == "cuda" and index < torch.cuda.device_count()
    return torch.cuda.get_device_name(index) if is_there else None


if __name__ == "__main__":
    sys.exit(main())
