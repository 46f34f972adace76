"""The benchmark of the page works, with a small extent; `make bench-page` has its figures."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from tests.bench.engine.report import Failure, Measured, Target
from tests.bench.machine import this_machine
from tests.bench.page import accessibility, rendering
from tests.bench.page.__main__ import QUICK, SLOW, Part, measure
from tests.bench.page.records import PageReport, Round, Visit
from tests.bench.page.rendering import Task
from tests.bench.page.statistics import ROWS, findings
from tests.bench.page.table import table

FEW = {"document": 3_000.0, "script": 50_000.0, "websocket": 1_000.0}
VISIT = Visit(
    usable_ms=900,
    paint_ms=500,
    shown_ms=None,
    requests=7,
    in_a_row=4,
    wire_bytes=FEW,
    nodes=200,
    heap_mb=3,
)


def test_a_figure_is_a_median_with_what_is_asked_of_it() -> None:
    visits = [VISIT, msgspec.structs.replace(VISIT, usable_ms=2_000), VISIT.__replace__(usable_ms=1_600)]
    found = {one.label: one for one in findings([Round(first=visit, reload=VISIT) for visit in visits])}
    assert (found["first visit: usable"].value, found["first visit: usable"].met) == (1.6, False)
    assert found["first visit: over the line"].value == 54
    assert found["first visit: over the line"].readings == {name: size / 1000 for name, size in FEW.items()}
    assert found["reload: usable"].target == Target(0.7, at_most=True)
    assert "reload: history shown" not in found
    assert len(found) == 2 * (len(ROWS) - 1)


def test_the_table_is_markdown_in_which_a_missed_target_is_bold() -> None:
    rows = (
        Measured(label="usable", value=1.6, unit="s", target=Target(1.5, at_most=True)),
        Measured(label="over the line", value=87, unit="KB", readings={"script": 50.0}),
        Measured(
            label="frames", value=16.7, unit="ms", target=Target(33, at_most=True), readings={"p50": 10}
        ),
    )
    report = PageReport(
        date="2026-11-23",
        command="make bench-page",
        machine=this_machine(()),
        line=SLOW,
        findings=rows,
        rounds=(),
        failures=(Failure("rules", "there is no npm"),),
    )
    assert table(report).splitlines() == [
        "| Figure        | Seen             | Target  |",
        "|---------------|------------------|---------|",
        "| usable        | **1.6 s**        | ≤ 1.5 s |",
        "| over the line | 87 KB            | \N{EN DASH}       |",
        "| frames        | 16.7 ms (p50 10) | ≤ 33 ms |",
        "FAILED: rules: there is no npm",
    ]


def test_the_longest_task_is_a_median_beside_what_the_processor_took() -> None:
    streamed = [[Task(60, 20), Task(10, 10)], [Task(40, 30)], [Task(90, 40), Task(70, 60)]]
    longest, count = rendering.figures("a table", streamed)
    assert (longest.value, longest.met, longest.readings) == (60, False, {"processor": 30})
    assert (count.value, count.readings) == (1, {"processor": 0})
    assert [one.met for one in rendering.figures("a table", [[]])] == [True, True]


def test_a_state_that_breaks_a_rule_misses_its_target_and_names_the_rule() -> None:
    row = accessibility.figure("asked_for_a_key", {"light": [], "dark": ["label: <p>", "label: <q>"]})
    assert (row.label, row.value, row.met) == ("axe violations: asked for a key", 2, False)
    assert (row.readings, row.note) == ({"light": 0, "dark": 2}, "label")


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="NOT TESTED: there is no `chromium` on PATH")
async def test_everything_is_measured_and_the_bytes_are_within_their_budget() -> None:
    """Bytes and round trips are the same on any machine; times are not. The rules have tests of their own."""
    report = await measure(QUICK, [part for part in Part if part is not Part.RULES])
    found = {one.label: one for one in report.findings}
    assert found["first visit: over the line"].met is True
    assert found["first visit: round trips in a row until usable"].value == 4
    assert found["reload: round trips in a row until usable"].value == 3
    assert found["reload: requests"].value == 2
    assert {"first visit: usable", "reload: usable", "reload: history shown"} <= set(found)
    assert found["400 messages: nodes, most"].met is True
    assert found["10 turns: elements"].met is True
    assert found["10 lines of code, streaming: longest task"].value
