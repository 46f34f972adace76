"""Measures the requested figures, the quick ones first: rounds of the throughput take the remaining time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime

from tests.bench.engine import jitter, midstream_only, sockets, throughput
from tests.bench.engine.budget import Budget
from tests.bench.engine.plan import Plan
from tests.bench.engine.report import EngineReport, Figure
from tests.bench.engine.session import Session
from tests.bench.engine.worker_pool import WorkerPool
from tests.bench.machine import this_machine

MEASURES: dict[Figure, Callable[[Session], None]] = {
    Figure.MEMORY: midstream_only.memory,
    Figure.CANCEL: midstream_only.cancel,
    Figure.NEXT_TURN: midstream_only.next_turn,
    Figure.BOUND: midstream_only.bound,
    Figure.STEADY: jitter.steady,
    Figure.PREFILL_GAP: jitter.prefill_gap,
    Figure.SOCKETS: sockets.measure,
    Figure.THROUGHPUT: throughput.measure,
}
"""The figures in the order of measurement."""

PACKAGES = ("midstream", "torch", "transformers", "tokenizers")


def run_measurements(
    plan: Plan, figures: Collection[Figure], crew: WorkerPool, *, progress: Callable[[str], None]
) -> EngineReport:
    """Measure; a failure is in the report with its reason. `progress` gets progress lines."""
    machine = this_machine(PACKAGES)
    if machine.warning:
        progress(machine.warning)
    kept_s = plan.budget_s * plan.throughput_share if Figure.THROUGHPUT in figures else 0.0
    session = Session(plan, crew, Budget(plan.budget_s, time.monotonic), progress, kept_s)
    for figure, measure in MEASURES.items():
        if figure in figures:
            progress(f"{figure}: {session.budget.left_s:.0f} s left")
            measure(session)
    return EngineReport(
        date=datetime.now(UTC).date().isoformat(),
        machine=machine,
        prompt_tokens=plan.prompt_tokens,
        new_tokens=plan.new_tokens,
        findings=tuple(session.findings),
        runs=tuple(session.runs),
        failures=tuple(session.failures),
        cuts=tuple(session.cuts),
    )
