"""Whatever an upstream does wrong, the client is told in one way that the protocol has for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upstreams.misbehaving import CASES, Case, outcome_of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_failure_has_its_outcome(case: Case, tmp_path: Path) -> None:
    assert await outcome_of(case, tmp_path) == case.outcome
