"""The whole run on a very small model: real processes, a real server, every contender. No speed is judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from tests.bench.engine import __main__ as command
from tests.bench.engine.plan import QUICK
from tests.bench.engine.records import Bound, Load, Memory, MemoryFacts, NextTurn, Observed, TurnTimes
from tests.bench.engine.registry import Name, Worker
from tests.bench.engine.report import Figure, decode
from tests.bench.engine.runner import run_measurements
from tests.bench.engine.shapes import SPECK, Shape
from tests.bench.engine.table import table
from tests.bench.engine.worker_pool import WorkerPool, assembled
from tests.bench.processes import MeasurementFailed

PLAN = msgspec.structs.replace(
    QUICK, models=(SPECK,), levels=(1, 2), new_tokens=8, steady_tokens=12, long_tokens=60,
    reply_tokens=4, added_tokens=8, turns=40, settled=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def crew() -> Iterator[WorkerPool]:
    with assembled() as made:
        yield made


def test_every_figure_is_found_and_nothing_fails(crew: WorkerPool) -> None:
    report = run_measurements(PLAN, set(Figure), crew, progress=print)
    assert report.failures == ()
    assert {found.figure for found in report.findings} == set(Figure) - {Figure.PREFILL_GAP}
    assert all(found.value is not None for found in report.findings)
    assert {run.contender for run in report.runs} == set(Name)
    assert all(run.tokens_per_s > 0 for run in report.runs)
    assert all(found.label in table(report) for found in report.findings)


def test_one_figure_is_measured_told_and_written(
    crew: WorkerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "assembled", lambda: nullcontext(crew))
    options = ["--quick", "--only", "memory", "--rounds", "1", "--model", "tiny", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["bench", *options])
    assert command.main() == 0
    report = decode((tmp_path / "engine.json").read_bytes())
    assert [found.figure for found in report.findings] == [Figure.MEMORY]
    assert (tmp_path / "engine.png").is_file()
    assert report.findings[0].label in capsys.readouterr().out


@pytest.mark.parametrize("name", Name)
def test_a_long_prompt_comes_between_and_a_load_that_is_too_long_is_cut(name: Name, crew: WorkerPool) -> None:
    load = Load(at_once=2, prompt_tokens=8, new_tokens=100, cut_s=60, intruder_tokens=100)
    between = crew.ask(name, SPECK, "bfloat16", load, Observed)
    assert between.intruder is not None
    assert len(between.intruder.arrivals) == 1
    short = msgspec.structs.replace(load, intruder_tokens=None, cut_s=0.0)
    assert crew.ask(name, SPECK, "bfloat16", short, Observed).cut


def test_a_job_that_fails_is_told_and_the_process_goes_on(crew: WorkerPool) -> None:
    with pytest.raises(MeasurementFailed, match="must fit"):
        crew.ask(
            Name.OURS,
            SPECK,
            "bfloat16",
            NextTurn(history_tokens=200, reply_tokens=1, added_tokens=1),
            TurnTimes,
        )
    load = Load(at_once=1, prompt_tokens=8, new_tokens=4, cut_s=60)
    assert len(crew.ask(Name.OURS, SPECK, "bfloat16", load, Observed).streams[0].arrivals) == 4


def test_only_our_engine_is_asked_for_its_bound(crew: WorkerPool) -> None:
    with pytest.raises(MeasurementFailed, match="only Midstream"):
        crew.ask(Name.THREADS, SPECK, "bfloat16", Bound(at_once=1, prompt_tokens=8, new_tokens=4), Observed)


def test_a_contender_that_does_not_start_is_told_with_its_last_words_and_not_tried_again(
    crew: WorkerPool,
) -> None:
    for reported in ("torch", "did not start before"):
        with pytest.raises(MeasurementFailed, match=reported):
            crew.ask(
                Name.THREADS,
                SPECK,
                "no_dtype",
                Load(at_once=1, prompt_tokens=8, new_tokens=4, cut_s=1),
                Observed,
            )


def test_a_process_that_takes_too_long_is_ended_and_asked_no_more(crew: WorkerPool) -> None:
    worker = Worker(
        contender=Name.OURS, folder=str(crew.model(SPECK)), dtype=PLAN.dtype, vocabulary=SPECK.vocabulary
    )
    process = crew._process(worker)
    endless = Memory(turns=10**9, settled=10**8, at_once=2)
    for reported in ("no answer within", "had ended before"):
        with pytest.raises(MeasurementFailed, match=reported):
            process.ask(endless, MemoryFacts, limit_s=0.1)
    assert not process.alive


def test_a_shape_that_no_model_has_is_told(tmp_path: Path) -> None:
    shape = Shape(name="none", hidden=8, layers=1, heads=1, intermediate=8, vocabulary=100)
    with pytest.raises(MeasurementFailed, match="no weights"):
        WorkerPool(tmp_path).model(shape)
