"""`make attack`: the requested attacks run, findings are printed and written; the guide counts all attacks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.attack import __main__ as command
from tests.attack.client import MB
from tests.attack.families import ATTACKS, NOTED, http
from tests.attack.report import GUIDE, RESULTS, AttackReport


def test_the_guide_counts_the_attacks_and_each_says_what_it_does() -> None:
    assert len(ATTACKS) == len(NOTED) >= 80
    assert [one.name for one in NOTED if not one.what.endswith(".")] == []
    assert f"in {len(NOTED)} ways" in GUIDE.read_text()


def test_the_guide_shows_what_the_results_miss() -> None:
    guide = GUIDE.read_text()
    report = msgspec.json.decode(RESULTS.read_bytes(), type=AttackReport)
    assert report.put_into(guide) == guide
    assert {one.attack for one in report.trials} == ATTACKS.keys()


def test_bodies_are_as_long_as_one_may_be_and_no_longer() -> None:
    made = (http._long(), http._metadata(), http._many_messages(), http._many_blocks())
    lengths = [len(whole.partition(b"\r\n\r\n")[2]) for (whole,) in made]
    assert all(3.8 * MB < length <= 4 * MB for length in lengths), lengths


def test_one_attack_runs_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "attack.json"
    given = ["--only", "bad-frames", "--quick", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["attack", *given])
    command.main()
    assert "bad-frames" in capsys.readouterr().out
    (trial,) = json.loads(out.read_text())["trials"]
    assert trial["told"]["error bad_frame"] > 0
    assert trial["attacked"]["faults"] == []
