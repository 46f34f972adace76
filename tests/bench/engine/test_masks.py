"""The bench of masks runs from its start to its table, with a vocabulary that is trained in a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.engine import large_vocabulary, masks


def test_it_measures_each_grammar_and_both_kinds_of_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_vocabulary, "CACHE", tmp_path / "cache")
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "some.py").write_text(Path(masks.__file__).read_text())
    tokenizer = large_vocabulary.large_tokenizer(600, texts)
    assert len(tokenizer) == 600
    model = masks._model(tokenizer, tmp_path / "model", 4)
    report = masks.measured(model, rounds=1, streams=2, tokens=12)
    assert {"any JSON object", "text with calls"} <= set(report.costs)
    assert all(cost.token_most_us > 0 for cost in report.costs.values())
    assert report.ratio > 0
    assert "target: at most 1.2" in masks.table(report)
