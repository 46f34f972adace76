"""Findings with their targets, as they are printed, stored and drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.engine.chart import draw, times_reached
from tests.bench.engine.registry import Name
from tests.bench.engine.report import EngineReport, Failure, Figure, Finding, Run, Target, decode, encode
from tests.bench.engine.table import shown, table, wanted
from tests.bench.engine.targets import AGAINST, ALONE
from tests.bench.engine.throughput import cuts, findings
from tests.bench.machine import this_machine
from tests.bench.table import TIMES


def run(contender: Name, speed: float, *, at_once: int = 32, number: int = 0, cut: bool = False) -> Run:
    return Run(
        model="tiny",
        dtype="bfloat16",
        contender=contender,
        at_once=at_once,
        round=number,
        tokens_per_s=speed,
        cut=cut,
    )


RUNS = (
    run(Name.OURS, 3000), run(Name.OURS, 3400, number=1), run(Name.BATCHING, 1000),
    run(Name.THREADS, 400, cut=True), run(Name.OURS, 400, at_once=1), run(Name.BATCHING, 100, at_once=1),
    run(Name.THREADS, 200, at_once=1),
)  # fmt: skip


@pytest.fixture
def report() -> EngineReport:
    cancel = Finding(
        figure=Figure.CANCEL, label="steps", value=0, target=Target(1, at_most=True), note="16 cancels"
    )
    unknown = Finding(figure=Figure.MEMORY, label="memory", value=None, unit="%", target=Target(2))
    return EngineReport(
        date="2026-01-02",
        machine=this_machine(("transformers",)),
        prompt_tokens=64,
        new_tokens=128,
        findings=(*findings(RUNS), cancel, unknown),
        runs=RUNS,
        failures=(Failure("memory", "no /proc"),),
        cuts=tuple(cuts(RUNS, 2)),
    )


def test_a_ratio_is_of_medians_and_each_has_its_own_target() -> None:
    batching, threads, alone = findings(RUNS)
    assert (batching.value, batching.target, batching.met) == (3.2, AGAINST["tiny"][Name.BATCHING], True)
    assert (threads.value, threads.target, threads.met) == (8.0, AGAINST["tiny"][Name.THREADS], False)
    assert (alone.value, alone.target, alone.met) == (2.0, ALONE["tiny"], True)


def test_a_peer_that_failed_leaves_its_ratio_open() -> None:
    batching, threads = findings([run(Name.OURS, 3000), run(Name.BATCHING, 1000)])
    assert batching.met
    assert (threads.value, threads.met) == (None, None)


def test_what_was_left_out_or_cut_is_said() -> None:
    reported = cuts(RUNS, 2)
    assert reported[0] == "continuous batching, tiny bfloat16, 32 at once: 1 of 2 rounds"
    assert (
        "a thread per request, tiny bfloat16, 32 at once: 1 of 2 rounds, stopped before its end" in reported
    )
    assert not any("Midstream, tiny bfloat16, 32" in line for line in reported)


def test_a_report_survives_its_file(report: EngineReport) -> None:
    assert decode(encode(report)) == report


def test_the_table_has_a_verdict_for_each_target_and_says_what_failed(report: EngineReport) -> None:
    lines = table(report).splitlines()
    assert lines[1].split()[-4:] == [f"3.2{TIMES}", "≥", f"3{TIMES}", "met"]
    assert lines[2].endswith("NOT MET")
    assert "16 cancels" in lines[4]
    assert lines[4].endswith("met")
    assert "n/a" in lines[5]
    assert "FAILED: memory: no /proc" in lines


@pytest.mark.parametrize(
    ("value", "unit", "text"), [(2.5, TIMES, f"2.5{TIMES}"), (-0.5, "%", "-0.5%"), (120.0, "ms", "120 ms")]
)
def test_values_stand_with_their_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_a_target_says_which_way_it_counts() -> None:
    assert wanted(Target(0.5), "") == "≥ 0.5"
    assert wanted(Target(100, at_most=True), "ms") == "≤ 100 ms"
    assert wanted(None, "ms") == ""


@pytest.mark.parametrize(("value", "at_most", "reached"), [(4, False, 2), (4, True, 0.5), (0, True, 10)])
def test_targets_are_reached_so_many_times(value: float, reached: float, *, at_most: bool) -> None:
    finding = Finding(figure=Figure.CANCEL, label="any", value=value, target=Target(2, at_most=at_most))
    assert times_reached(finding) == pytest.approx(reached)


def test_only_what_has_a_target_can_be_judged(report: EngineReport) -> None:
    with pytest.raises(ValueError, match="judged"):
        times_reached(report.findings[-1])


def test_the_picture_is_drawn_also_where_figures_are_missing(report: EngineReport, tmp_path: Path) -> None:
    draw(report, tmp_path / "engine.png")
    assert (tmp_path / "engine.png").read_bytes().startswith(b"\x89PNG")
