"""The bench of images runs from its start to its table, with a model that is there at once."""

from __future__ import annotations

from pathlib import Path

from engine.machine import EngineOptions
from tests.bench.engine import images


async def test_it_measures_plain_streams_alone_and_beside_images(tmp_path: Path) -> None:
    model = images.small_model(tmp_path)
    options = EngineOptions(model=str(model), device="cpu", dtype="bfloat16", max_batch=4)
    report = await images.measured(options, streams=2, rounds=1, seconds=2.0)
    assert [gaps.images for gaps in report.alone] == [0]
    assert report.beside[0].images > 0
    assert all(0 < gaps.p50_ms <= gaps.p99_ms <= gaps.most_ms for gaps in (*report.alone, *report.beside))
    assert "1 beside images" in images.table(report)
    assert min(report.ratios) > 0
