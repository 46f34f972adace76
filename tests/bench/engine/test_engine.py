"""The labs of the engine on very small models: real processes, a real server, every contender. No speed is judged."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from tests.bench.engine.__main__ import MEASURES, QUICK, run_measurements
from tests.bench.engine.load import Load
from tests.bench.engine.shapes import SPECK
from tests.bench.engine.worker import Name, WorkerPool, assembled
from tests.bench.report import MeasurementFailed

PLAN = msgspec.structs.replace(
    QUICK, models=(SPECK,), at_once=(1, 2), new_tokens=8, long_tokens=60,
    reply_tokens=4, added_tokens=8, turns=40, settled=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with assembled() as made:
        yield made


def test_every_figure_is_found_and_nothing_fails(pool: WorkerPool) -> None:
    report = run_measurements(PLAN, list(MEASURES), pool)
    assert report.failures == []
    assert {found.part for found in report.findings} == set(MEASURES)
    assert all(found.value is not None for found in report.findings)
    compared = [found.readings for found in report.findings if found.part == "throughput"]
    assert [len(readings) for readings in compared] == [2, 2]


@pytest.mark.parametrize("name", Name)
def test_a_load_that_is_too_long_is_cut_and_the_next_one_is_whole(name: Name, pool: WorkerPool) -> None:
    load = Load(at_once=2, prompt_tokens=8, new_tokens=100, cut_s=0.01)
    assert pool.load(name, SPECK, "bfloat16", load).cut
    whole = pool.load(name, SPECK, "bfloat16", msgspec.structs.replace(load, cut_s=60))
    assert (len(whole.arrivals), whole.cut) == (200, False)


def test_a_job_or_a_process_that_fails_is_reported(pool: WorkerPool) -> None:
    with pytest.raises(MeasurementFailed, match="must fit"):
        pool.facts(SPECK, "bfloat16", "next_turn", long_tokens=200, new_tokens=1, added_tokens=1)
    with pytest.raises(MeasurementFailed, match="no_dtype"):
        pool.load(Name.BATCHING, SPECK, "no_dtype", Load(at_once=1, prompt_tokens=8, new_tokens=4, cut_s=1))
