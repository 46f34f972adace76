"""The faults that one gateway meets, a little of each; `make chaos` has all of them, with their figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.bench.report import Measured
from tests.chaos import many_connections
from tests.chaos.scenario import QUICK, Scenario


@pytest.mark.parametrize(
    "measure",
    [many_connections.fan_out, many_connections.idle, many_connections.storm, many_connections.slow_readers],
)
def test_nothing_is_lost_and_nobody_is_left_hanging(
    measure: Callable[[Scenario], Sequence[Measured]], tmp_path: Path
) -> None:
    """Speed and size are left to the command: a busy machine makes no service wrong."""
    found = measure(Scenario(scale=QUICK, folder=tmp_path, seed=1, log=print))
    assert [one.label for one in found if one.value is None] == []
    assert [f"{one.label}: {one.note}" for one in found if one.is_about_faults and not one.met] == []
