"""The engine and transformers' continuous batching on the same device, in turns."""

from __future__ import annotations

import msgspec

from tests.bench.engine import gpu
from tests.bench.engine.shapes import QWEN_1B5
from tests.bench.report import table
from tests.gpu.results import DEVICE, expect, print_line


def main() -> None:
    plan = msgspec.structs.replace(
        gpu.PLAN, models=(QWEN_1B5,), levels=(1, 64), rounds=1, budget_s=120.0, cut_s=15.0
    )
    report = gpu.conduct(plan, DEVICE, device=DEVICE)
    print_line(table(report))
    expect(not report.failures, f"each contender finishes: {report.failures}")
    expect(not report.cuts, f"the time suffices for each contender: {report.cuts}")


if __name__ == "__main__":
    main()
