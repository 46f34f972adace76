"""The labs of the engine on very small models: real processes, a real server, every contender. No speed is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from engine.loading.loader import load
from engine.machine import EngineOptions
from tests.bench.engine import gpu, masks, weights
from tests.bench.engine.__main__ import MEASURES, QUICK, Plan, run_measurements
from tests.bench.engine.load import Load
from tests.bench.engine.shapes import SPECK
from tests.bench.engine.worker import Name, OwnJob, OwnMeasure, WorkerPool, assembled
from tests.bench.report import MeasurementFailed

PLAN = msgspec.structs.replace(
    QUICK, models=(SPECK,), at_once=2, new_tokens=8, steady_tokens=12, long_tokens=60,
    reply_tokens=4, added_tokens=8, turns=40, settled=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    with assembled() as made:
        yield made


def test_every_figure_is_found_and_nothing_fails(pool: WorkerPool) -> None:
    report = run_measurements(PLAN, list(MEASURES), pool)
    assert report.failures == []
    assert {found.part for found in report.findings} == set(MEASURES) - {"prefill-gap"}
    assert all(found.value is not None for found in report.findings)


@pytest.mark.parametrize("name", Name)
def test_a_long_prompt_comes_between_and_a_load_that_is_too_long_is_cut(name: Name, pool: WorkerPool) -> None:
    intruded = Load(at_once=2, prompt_tokens=8, new_tokens=100, cut_s=60, intruder_tokens=100)
    between = pool.load(name, SPECK, "bfloat16", intruded)
    assert between.intruder is not None
    assert len(between.intruder.arrivals) == 1
    short = msgspec.structs.replace(intruded, intruder_tokens=None, cut_s=0.01)
    assert pool.load(name, SPECK, "bfloat16", short).cut


def test_a_job_or_a_process_that_fails_is_reported(pool: WorkerPool) -> None:
    with pytest.raises(MeasurementFailed, match="must fit"):
        pool.facts(SPECK, "bfloat16", OwnJob(measure=OwnMeasure.NEXT_TURN, long_tokens=200, new_tokens=1))
    with pytest.raises(MeasurementFailed, match="no_dtype"):
        pool.load(Name.BATCHING, SPECK, "no_dtype", Load(at_once=1, prompt_tokens=8, new_tokens=4, cut_s=1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_device_bench_gpu_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench-gpu"])
    assert gpu.main() == 2


def test_bench_gpu_compares_both_at_all_levels() -> None:
    plan = Plan(models=(SPECK,), prompt_tokens=8, new_tokens=12)
    report = gpu.conduct(plan, "a processor", device="cpu", levels=(1, 2))
    assert report.failures == []
    assert [len(found.readings) for found in report.findings] == [2, 2]
    assert all(found.value for found in report.findings)


def test_gaps_beside_masks_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "CACHE", tmp_path / "cache")
    (texts := tmp_path / "texts").mkdir()
    (texts / "some.py").write_text(Path(masks.__file__).read_text())
    weights.save_wide(tmp_path / "model", weights.large_tokenizer(600, texts))
    model = load(EngineOptions(model=str(tmp_path / "model"), device="cpu", dtype="bfloat16", max_batch=4))
    (found,) = masks.measured(model, rounds=1, streams=2, tokens=12).findings
    assert (found.value or 0) > 0
