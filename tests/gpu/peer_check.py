"""The engine and transformers' continuous batching on the same device, in turns."""

from __future__ import annotations

from tests.bench.engine.__main__ import Plan, run_measurements
from tests.bench.engine.shapes import QWEN_1B5
from tests.bench.engine.worker import assembled
from tests.gpu.results import DEVICE, expect, print_line

PLAN = Plan(models=(QWEN_1B5,), rounds=1, cut_s=15.0, at_once=(1, 64))


def main() -> None:
    with assembled(device=DEVICE, most_at_once=max(PLAN.at_once)) as pool:
        report = run_measurements(PLAN, ["throughput"], pool)
    print_line(report.table())
    expect(not report.failures, f"each contender finishes: {report.failures}")


if __name__ == "__main__":
    main()
