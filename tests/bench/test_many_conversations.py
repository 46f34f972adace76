"""The measurement of many conversations works with a few; `python -m tests.bench.many_conversations` has its figures."""

from __future__ import annotations

from tests.bench.many_conversations import QUICK, measure


async def test_everything_is_measured() -> None:
    report = await measure(QUICK)
    labels = {one.label for one in report.findings if one.value is not None}
    assert {"memory of the gateway", "memory of Redis", "hello: p99", "accepted: p99"} <= labels
    assert len(labels) == len(report.findings)
    assert all(len(one.readings) == 3 for one in report.findings if "p50" in one.label)
