"""The labs of the page work, with a small extent."""

from __future__ import annotations

import shutil

import pytest

from tests.bench.page.__main__ import PARTS, QUICK, RULES, measure

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="NOT TESTED: there is no `chromium` on PATH"),
]


async def test_everything_is_measured_and_the_bytes_are_within_their_budget() -> None:
    """Bytes and round trips are the same on any machine; times are not. The rules have tests of their own."""
    report = await measure(QUICK, [part for part in PARTS if part != RULES])
    found = {one.label: one for one in report.findings}
    assert found["first visit: over the line"].met is True
    assert found["first visit: round trips in a row until usable"].value == 4
    assert found["reload: round trips in a row until usable"].value == 3
    assert found["reload: requests"].value == 2
    assert {"first visit: usable", "reload: usable"} <= set(found)
    assert found["400 messages: nodes, most"].met is True
    assert found["10 lines of code, streaming: longest task"].value
