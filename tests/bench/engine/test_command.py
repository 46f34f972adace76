"""`make bench-engine`: its options become a plan, its findings become files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.engine.__main__ import main
from tests.bench.engine.findings import Figure, decode


def test_one_figure_is_measured_told_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--only", "memory", "--rounds", "1", "--model", "tiny", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["bench", *options])
    assert main() == 0
    report = decode((tmp_path / "engine.json").read_bytes())
    assert [found.figure for found in report.findings] == [Figure.MEMORY]
    assert (tmp_path / "engine.png").is_file()
    assert report.findings[0].label in capsys.readouterr().out


def test_a_figure_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench", "--only", "beauty"])
    with pytest.raises(SystemExit):
        main()
