"""`make bench-gpu`: the engine and transformers' continuous batching on a CUDA device."""

from __future__ import annotations

import argparse
import os
import sys

import msgspec

from tests.bench.engine.__main__ import Plan, run_measurements
from tests.bench.engine.shapes import LLAMA_8B, QWEN_1B5, SPECK
from tests.bench.engine.worker import assembled
from tests.bench.report import NotInstalled, Report, run_lab

FULL = Plan(models=(QWEN_1B5, LLAMA_8B), rounds=1, cut_s=30.0, at_once=(1, 64))


def main(options: argparse.Namespace) -> Report:
    """Measure. Raises NotInstalled if there is no CUDA device."""
    name = _device_name(options.device)
    if name is None:
        raise NotInstalled(
            f"bench-gpu: PyTorch finds no CUDA device {options.device} here, so there is nothing to measure."
        )
    plan = msgspec.structs.replace(FULL, models=(SPECK,)) if options.quick else FULL
    report = measured(plan, options.device)
    report.machine = msgspec.structs.replace(report.machine, processor=name)
    return report


def measured(plan: Plan, device: str) -> Report:
    """Measure both engines; a failure is in the report with its reason."""
    with assembled(device=device, most_at_once=max(plan.at_once)) as pool:
        return run_measurements(plan, ["throughput"], pool)


def more(parser: argparse.ArgumentParser) -> None:
    """Add the options of this lab alone."""
    device = os.environ.get("DEVICE", "cuda:0")
    parser.add_argument("--device", default=device, help="cuda:0 by default")


def _device_name(device: str) -> str | None:
    """Return the name of a CUDA device, such as `cuda:1`; None if there is no such device."""
    import torch  # noqa: PLC0415 - `--help` need not wait for it

    named = torch.device(device)
    index = named.index or 0
    is_there = named.type == "cuda" and index < torch.cuda.device_count()
    return torch.cuda.get_device_name(index) if is_there else None


if __name__ == "__main__":
    sys.exit(run_lab("tests.bench.engine.gpu", __doc__, main, more=more))
