"""A rolling upgrade, with few who talk; `make chaos ARGS='--only upgrade'` has more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.scenario import QUICK, Scenario
from tests.chaos.upgrade import NoHistory, checked_out, measure


def test_replicas_are_replaced_by_todays_and_nobody_loses_anything(tmp_path: Path) -> None:
    try:
        found = measure(Scenario(scale=QUICK, folder=tmp_path, seed=1, log=print))
    except NoHistory as missing:
        pytest.skip(f"rolling upgrades go UNTESTED, the earlier version is not here: {missing}")
    wrong = [f"{one.label}: {one.note}" for one in found if one.is_about_faults and not one.met]
    assert wrong == []


def test_a_clone_without_its_history_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NoHistory, match="the history has no 00000000"):
        checked_out("0" * 40, tmp_path)
