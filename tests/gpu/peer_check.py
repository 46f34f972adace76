"""The engine and transformers' continuous batching on the same device, in turns."""

from __future__ import annotations

import msgspec

from tests.bench.engine import gpu
from tests.bench.engine.shapes import QWEN_1B5
from tests.gpu.results import DEVICE, expect, print_line


def main() -> None:
    report = gpu.measured(msgspec.structs.replace(gpu.FULL, models=(QWEN_1B5,), cut_s=15.0), DEVICE)
    print_line(report.table())
    expect(not report.failures, f"each contender finishes: {report.failures}")


if __name__ == "__main__":
    main()
