"""The faults of several replicas and their store, a little of each; `make chaos` has all of them, with their figures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos import __main__ as command
from tests.chaos.scenario import QUICK, Scenario

PARTS = [
    *("network", "cluster", "cluster-planned", "sentinel", "sentinel-planned"),
    *("kills", "power-failures", "walks", "tools"),
]


@pytest.mark.parametrize("name", PARTS)
async def test_whatever_dies_or_stalls_nothing_is_lost_or_doubled(name: str, tmp_path: Path) -> None:
    found = await command.PARTS[name](Scenario(scale=QUICK, folder=tmp_path, seed=1))
    faults = [one for one in found if one.value is None or (one.is_about_faults and not one.met)]
    assert [f"{one.label}: {one.note}" for one in faults] == []


def test_a_part_that_hangs_is_ended_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_: Scenario) -> None:
        await asyncio.Event().wait()

    monkeypatch.setitem(command.PARTS, "walks", hang)
    report = command.run_scenarios(QUICK, ["walks"], seed=1, limit_s=0.05)
    assert [failure.why for failure in report.failures] == ["MeasurementFailed: it was not done in 0.05 s"]
