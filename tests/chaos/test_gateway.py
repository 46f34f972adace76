"""The bad days that a gateway has by itself, a little of each; `make chaos` has all of them, with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.chaos import connect_storm, fan_out, fuzz, idle, slow_readers
from tests.chaos.report import Finding
from tests.chaos.scenario import QUICK, Scenario


@pytest.mark.parametrize(
    "measure",
    [
        fan_out.measure,
        idle.measure,
        connect_storm.measure,
        slow_readers.measure,
        fuzz.frames,
        fuzz.handshakes,
    ],
    ids=["fan-out", "idle", "storm", "slow-readers", "fuzz-frames", "fuzz-handshakes"],
)
def test_nothing_is_lost_and_nobody_is_left_hanging(
    measure: Callable[[Scenario], Sequence[Finding]], tmp_path: Path
) -> None:
    """Speed and size are left to the command: a busy machine makes no service wrong."""
    found = measure(Scenario(scale=QUICK, folder=tmp_path, seed=1, log=print))
    assert [one.label for one in found if one.value is None] == []
    wrong = [f"{one.label}: {one.note}" for one in found if one.is_about_faults and not one.met]
    assert wrong == []
