"""A small, made-up report."""

from __future__ import annotations

import pytest

from tests.bench.machine import this_machine
from tests.bench.report import Report, Turn, medians_of
from tests.bench.statistics import Figures
from tests.bench.workload import QUICK

TURNS = (
    Turn(contender="midstream", round=0, start_s=3, levels={1: Figures(tokens_per_s=400, silent_ms=5)}),
    Turn(contender="threads", round=0, start_s=2, levels={1: Figures(tokens_per_s=100)}),
    Turn(contender="midstream", round=1, start_s=3, levels={1: Figures(tokens_per_s=200, silent_ms=7)}),
    Turn(contender="threads", round=1, start_s=None, levels={}, failures=("it did not start",)),
)


@pytest.fixture
def report() -> Report:
    return Report(
        date="2026-01-02",
        machine=this_machine(("transformers",)),
        device="cpu",
        dtype="bfloat16",
        workload=QUICK,
        titles={"midstream": "Midstream", "threads": "a thread per request"},
        turns=TURNS,
        medians=medians_of(TURNS),
    )
