"""The labs of the engine on very small models: real processes, a real server, every contender. No speed is judged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from engine.loading.loader import load
from engine.machine import EngineOptions
from tests.bench.engine import gpu, images, masks, weights
from tests.bench.engine.__main__ import MEASURES, QUICK, Plan, run_measurements
from tests.bench.engine.load import Load
from tests.bench.engine.shapes import SPECK
from tests.bench.engine.worker import Name, OwnJob, OwnMeasure, WorkerPool, assembled
from tests.bench.report import MeasurementFailed, table
from tests.engine.vision_models import folder_of

PLAN = msgspec.structs.replace(
    QUICK, models=(SPECK,), levels=(1, 2), new_tokens=8, steady_tokens=12, long_tokens=60,
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
    assert {run.contender for run in report.details["runs"]} == set(Name)
    assert all(found.label in table(report) for found in report.findings)


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
    for reported in ("torch", "did not start before"):
        with pytest.raises(MeasurementFailed, match=reported):
            pool.load(
                Name.THREADS, SPECK, "no_dtype", Load(at_once=1, prompt_tokens=8, new_tokens=4, cut_s=1)
            )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_device_bench_gpu_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench-gpu"])
    assert gpu.main() == 2


def test_bench_gpu_compares_both_at_all_levels_within_the_budget() -> None:
    plan = Plan(models=(SPECK,), levels=(1, 2), rounds=1, prompt_tokens=8, new_tokens=12, mixed_tokens=(4, 9))
    report = gpu.conduct(plan, "a processor", device="cpu")
    assert report.failures == []
    assert {(run.contender, run.at_once) for run in report.details["runs"]} == {
        (name, at_once) for name in (Name.OURS, Name.BATCHING) for at_once in (1, 2)
    }
    assert all(found.value for found in report.findings)
    late = gpu.conduct(msgspec.structs.replace(plan, budget_s=0.0), "a processor", device="cpu")
    assert (late.details["runs"], len(late.cuts)) == ([], 2)


async def test_plain_streams_are_measured_alone_and_beside_images(tmp_path: Path) -> None:
    model = folder_of("smolvlm", tmp_path / "model", window=images.WINDOW)
    options = EngineOptions(model=str(model), device="cpu", dtype="bfloat16", max_batch=4)
    report = await images.measured(options, streams=2, rounds=1, seconds=2.0)
    alone, beside, *ratios = report.findings
    assert (alone.readings["images"], beside.readings["images"] > 0) == (0, True)
    assert all((ratio.value or 0) > 0 for ratio in ratios)


def test_masks_are_measured_for_each_grammar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "CACHE", tmp_path / "cache")
    (texts := tmp_path / "texts").mkdir()
    (texts / "some.py").write_text(Path(masks.__file__).read_text())
    weights.save_wide(tmp_path / "model", weights.large_tokenizer(600, texts))
    model = load(str(tmp_path / "model"), device="cpu", dtype="bfloat16", max_batch=4)
    report = masks.measured(model, rounds=1, streams=2, tokens=12)
    assert {"any JSON object: a token, most", "text with calls: a token, most"} <= {
        one.label for one in report.findings
    }
    assert all((one.value or 0) > 0 for one in report.findings)
