"""`make chaos`: the requested parts run, each within its time; findings are printed and written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.bench.engine.report import Target
from tests.chaos import runner
from tests.chaos.__main__ import main
from tests.chaos.report import Finding, Part
from tests.chaos.scenario import Scenario

NINETY_MINUTES_S = 90 * 60


def test_all_of_it_ends_within_ninety_minutes() -> None:
    assert set(runner.LIMITS_S) == set(runner.MEASURES) == set(Part)
    usual = [limit_s for part, limit_s in runner.LIMITS_S.items() if part not in runner.ALONE]
    assert sum(usual) <= NINETY_MINUTES_S


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr("sys.argv", ["chaos", "--quick", "--only", "storm", *options])
    return main()


def play(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Have the storm find a value whose target is zero."""

    def measure(scenario: Scenario) -> Sequence[Finding]:
        return (Finding(part=Part.STORM, label="hung", value=value, target=Target(0.0, at_most=True)),)

    monkeypatch.setitem(runner.MEASURES, Part.STORM, measure)


def test_what_is_found_is_told_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    play(monkeypatch, 0.0)
    assert run(monkeypatch, "--out", str(tmp_path / "chaos.json")) == 0
    assert "hung" in capsys.readouterr().out
    written = json.loads((tmp_path / "chaos.json").read_text())
    assert [one["part"] for one in written["findings"]] == ["storm"]


def test_a_missed_target_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, 1.0)
    assert run(monkeypatch) == 1


def test_a_part_that_hangs_is_ended_and_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hang(scenario: Scenario) -> Sequence[Finding]:
        while True:
            pass

    monkeypatch.setitem(runner.MEASURES, Part.STORM, hang)
    monkeypatch.setitem(runner.LIMITS_S, Part.STORM, 0.05)
    assert run(monkeypatch) == 1
    assert "FAILED: storm: OutOfTime" in capsys.readouterr().out
