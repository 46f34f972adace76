"""The targets of a long conversation are those of the right figures."""

from __future__ import annotations

import msgspec

from tests.bench.page.long_conversation import LongConversationResult, figures

GOOD = LongConversationResult(
    up_ms=[16.7] * 99 + [90.0],
    down_ms=[16.7],
    writing_ms=[16.7],
    elements=1_100,
    nodes=1_500,
    heap_mb=9.0,
)


def missed(empty: list[float], full: list[float], seen: LongConversationResult) -> list[str]:
    """Return the missed targets, without the name of the conversation."""
    rows = figures(10_000, empty, full, seen)
    return [row.label.partition(": ")[2] for row in rows if row.met is False]


def test_a_page_that_does_what_is_asked_misses_nothing() -> None:
    assert missed([300.0, 310.0, 900.0], [420.0], GOOD) == []


def test_each_figure_can_be_missed() -> None:
    bad = msgspec.structs.replace(GOOD, up_ms=[16.7] * 90 + [90.0] * 10, writing_ms=[50.0], nodes=3_001)
    assert missed([300.0], [501.0], bad) == [
        "opening, above an empty one",
        "frame p95, scrolling up",
        "frame p95, while a reply is written",
        "nodes, most",
    ]
