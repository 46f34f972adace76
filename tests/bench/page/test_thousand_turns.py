"""A talk of a few turns is measured; `python -m tests.bench.page.thousand_turns` has the figures of a thousand."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from tests.bench.page.scripted_server import reply
from tests.bench.page.thousand_turns import (
    Checkpoint,
    ConversationRun,
    gateway,
    ours,
    run_conversation,
    table,
)

STAND = Checkpoint(
    turns=10,
    seconds=9.0,
    first_text_ms=41.0,
    long_tasks=3,
    longest_ms=80.0,
    blocked_ms=60.0,
    cpu_ms=30.0,
    heap_mb=4.5,
    elements=900,
    nodes=2_000,
)


def test_a_mark_of_one_page_stands_beside_the_same_of_the_other() -> None:
    later = msgspec.structs.replace(STAND, turns=100)
    rows = table(
        [
            ConversationRun(page="Ours", version="1", turns=100, stands=(STAND, later)),
            ConversationRun(page="Theirs", version="2", turns=10, stands=(STAND,)),
        ]
    ).splitlines()[2:]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| 10 turns", "Ours"],
        ["| 10 turns", "Theirs"],
        ["| 100 turns", "Ours"],
    ]


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("chromium") is None, reason="NOT TESTED: there is no `chromium` on PATH")
def test_each_turn_is_typed_and_read_to_its_end(tmp_path: Path) -> None:
    with gateway(tmp_path) as server:
        talked = run_conversation(ours(server), turns=3, minutes=5, progress=print)
    (stand,) = talked.stands
    assert (talked.turns, stand.turns) == (3, 3)
    assert 0 < stand.first_text_ms < 1000 * stand.seconds
    assert stand.cpu_ms > 0
    assert stand.heap_mb > 1
    assert stand.elements > 3 * reply(1).count("\n- ")
    assert stand.nodes > stand.elements
