"""`make bench-gpu`: everything except the device, on the smallest model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tests.bench.engine import gpu
from tests.bench.engine.plan import Plan
from tests.bench.engine.registry import Name
from tests.bench.engine.report import Figure
from tests.bench.engine.shapes import SPECK
from tests.bench.engine.weights import save
from tests.bench.engine.worker_pool import WorkerPool, assembled


@contextmanager
def equipped(*, device: str, most_at_once: int) -> Iterator[WorkerPool]:
    """A crew whose model is there. A test of the whole run covers a process that draws its own."""
    with assembled(device=device, most_at_once=most_at_once) as crew:
        save(SPECK, crew._folder / SPECK.name)
        yield crew


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_device_it_says_so_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench-gpu"])
    assert gpu.main() == 2
    assert "no CUDA device" in capsys.readouterr().out


def test_both_get_their_turns_at_all_levels_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "assembled", equipped)
    plan = Plan(
        models=(SPECK,),
        levels=(1, 2),
        rounds=1,
        prompt_tokens=8,
        new_tokens=12,
        budget_s=240.0,
        mixed_tokens=(4, 9),
    )
    report = gpu.conduct(plan, "a processor", device="cpu")
    assert not report.failures
    mixed = [run for run in report.runs if run.model.endswith(gpu.MIXED)]
    equal = [run for run in report.runs if run not in mixed]
    assert [(run.contender, run.at_once) for run in equal] == [(run.contender, run.at_once) for run in mixed]
    assert [(run.contender, run.at_once) for run in equal] == [
        (Name.OURS, 1), (Name.OURS, 2), (Name.BATCHING, 1), (Name.BATCHING, 2),
    ]  # fmt: skip
    ratios = [found for found in report.findings if found.figure is Figure.THROUGHPUT]
    assert all(found.value and found.value > 0 for found in ratios)
    assert len([found for found in report.findings if found.figure is Figure.BOUND]) == 2


def test_nothing_is_begun_once_the_time_is_used_up() -> None:
    report = gpu.conduct(Plan(models=(SPECK,), budget_s=0.0, rounds=1), "a processor", device="cpu")
    assert (report.runs, len(report.cuts)) == ((), 2)
