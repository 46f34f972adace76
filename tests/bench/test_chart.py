"""The picture is a file that any viewer opens."""

from __future__ import annotations

from pathlib import Path

from tests.bench.chart import draw
from tests.bench.report import Report


def test_the_picture_is_drawn_also_where_figures_are_missing(report: Report, tmp_path: Path) -> None:
    draw(report, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
