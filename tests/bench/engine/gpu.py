"""`make bench-gpu`: the engine and transformers' continuous batching on a CUDA device.

Each has the device to itself in turns, since each takes all remaining memory. Not part of `bench-engine`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial

import msgspec

from tests.bench.engine.__main__ import Plan, Session
from tests.bench.engine.shapes import LLAMA_8B, QWEN_1B5, SPECK, Shape
from tests.bench.engine.worker import TITLES, Name, assembled
from tests.bench.report import NotInstalled, Report, run_lab

LEVELS = (1, 64)


def main(options: argparse.Namespace) -> Report:
    """Measure. Raises NotInstalled if there is no CUDA device."""
    name = _device_name(options.device)
    if name is None:
        raise NotInstalled(
            f"bench-gpu: PyTorch finds no CUDA device {options.device} here, so there is nothing to measure."
        )
    models = (SPECK,) if options.quick else (QWEN_1B5, LLAMA_8B)
    return conduct(Plan(models=models, cut_s=30.0), name, device=options.device)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the options of this lab alone."""
    device = os.environ.get("DEVICE", "cuda:0")
    parser.add_argument("--device", default=device, help="cuda:0 by default")


def conduct(plan: Plan, processor: str, *, device: str, levels: Sequence[int] = LEVELS) -> Report:
    """Measure both engines once at each level; a failure is in the report with its reason. `processor`: the device's name."""
    with assembled(device=device, most_at_once=max(levels)) as pool:
        session = Session(plan, pool)
        session.report.machine = msgspec.structs.replace(session.report.machine, processor=processor)
        for shape in plan.models:
            speeds: dict[Name, dict[int, float]] = {}
            for name in Name:
                act = partial(_turn, session, shape, name, levels)
                found = session.rounds(f"{TITLES[name]}, {shape.name}", act, times=1)
                speeds[name] = found[0] if found else {}
                pool.dismiss()
            for at_once in levels:
                readings = {TITLES[name]: by_level[at_once] for name, by_level in speeds.items() if by_level}
                session.ratio(shape, at_once, readings)
    return session.report


def _turn(session: Session, shape: Shape, name: Name, levels: Sequence[int], _: int) -> dict[int, float]:
    """Return the tokens per second at each level, after a short load of its kind that warms up. Raises MeasurementFailed."""
    plan, speeds = session.plan, {}
    for at_once in levels:
        session.pool.load(name, shape, plan.dtype, plan.load(at_once, 0, new_tokens=8))
        speeds[at_once] = session.pool.load(name, shape, plan.dtype, plan.load(at_once, 0)).tokens_per_s
    return speeds


def _device_name(device: str) -> str | None:
    """Return the name of a CUDA device, such as `cuda:1`; None if there is no such device."""
    import torch  # noqa: PLC0415 - `--help` need not wait for it

    named = torch.device(device)
    index = named.index or 0
    is_there = named.type == "cuda" and index < torch.cuda.device_count()
    return torch.cuda.get_device_name(index) if is_there else None


if __name__ == "__main__":
    sys.exit(run_lab("tests.bench.engine.gpu", __doc__, main, more=more))
