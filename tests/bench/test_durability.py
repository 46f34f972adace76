"""The measurement of durability works with a little of it; `python -m tests.bench.durability` has its figures."""

from __future__ import annotations

from tests.bench.durability import QUICK, measure


def test_every_way_is_measured() -> None:
    report = measure(QUICK)
    assert all(one.value is not None for one in report.findings)
    assert {name for one in report.findings for name in one.readings} == {
        "memory",
        "disk",
        "waitaof",
        "owner",
    }
