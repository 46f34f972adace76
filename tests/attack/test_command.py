"""`make attack`: the requested attacks run, findings are printed and written; the guide lists all attacks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from tests.attack import __main__ as command
from tests.attack.attack import MB
from tests.attack.families import bodies
from tests.attack.registry import ATTACKS, NOTED
from tests.attack.report import AttackReport
from tests.attack.table import markdown, put_between


def test_every_attack_has_a_name_of_its_own_and_a_sentence() -> None:
    assert len(ATTACKS) == len(NOTED)
    assert [name for name, attack in ATTACKS.items() if not attack.what.endswith(".")] == []
    assert len(ATTACKS) >= 90


def test_the_list_has_a_line_for_each_attack_of_the_guide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["attack", "--list"])
    assert command.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("`")[1] for line in lines] == list(ATTACKS)
    assert f"in {len(lines)} ways" in command.GUIDE.read_text()


def test_the_guide_shows_what_the_results_miss() -> None:
    guide = command.GUIDE.read_text()
    report = msgspec.json.decode(command.RESULTS.read_bytes(), type=AttackReport)
    assert put_between(guide, "results", markdown(report)) == guide


def test_bodies_are_as_long_as_one_may_be_and_no_longer() -> None:
    made = (bodies._long(), bodies._deep(), bodies._many_keys(), bodies._metadata(), bodies._many_messages())
    lengths = [len(whole.partition(b"\r\n\r\n")[2]) for whole in made]
    assert all(3.8 * MB < length <= 4 * MB for length in lengths), lengths


def test_one_attack_runs_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "attack.json"
    given = ["--only", "bad-frames", "--attackers", "2", "--seconds", "2", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["attack", *given])
    command.main()
    assert "bad-frames" in capsys.readouterr().out
    (trial,) = json.loads(out.read_text())["trials"]
    assert trial["told"]["error"] > 0
    assert trial["attacked"]["faults"] == []
