"""The benchmark of the page works, on one visitor; `make bench-page` has its figures."""

from __future__ import annotations

import shutil

import msgspec
import pytest

from tests.bench.engine.findings import Target
from tests.bench.page.__main__ import measure
from tests.bench.page.figures import ROWS, findings
from tests.bench.page.records import Round, Visit

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


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="NOT TESTED: there is no `chromium` on PATH")
async def test_everything_is_measured_and_the_bytes_are_within_their_budget() -> None:
    """Bytes and round trips are the same on any machine; times are not."""
    report = await measure(rounds=1)
    found = {one.label: one for one in report.findings}
    assert found["first visit: over the line"].met is True
    assert found["first visit: round trips in a row until usable"].value == 4
    assert found["reload: round trips in a row until usable"].value == 3
    assert found["reload: requests"].value == 2
    assert {"first visit: usable", "reload: usable", "reload: history shown"} <= set(found)
