"""`make autobahn` compares verdicts, and says so where it can't run."""

from __future__ import annotations

import pytest

from tests.chaos import autobahn


def test_what_fails_here_and_not_there_is_worse() -> None:
    theirs = {"1.1": "OK", "1.2": "NON-STRICT", "1.3": "FAILED", "1.4": "OK"}
    assert autobahn.worse_than(theirs, theirs) == []
    assert autobahn.worse_than(theirs, {"1.1": "FAILED", "1.2": "OK", "1.3": "FAILED"}) == ["1.1", "1.4"]


def test_without_a_python_2_it_is_skipped_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["autobahn", "--python", "true"])
    assert autobahn.main() == 0
    assert "skipped" in capsys.readouterr().out
