"""Who follows a conversation is told each event once and in order, on however many connections it comes, and after which pauses."""

from __future__ import annotations

from itertools import islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from midstream.client import Follower, Position, delays

HISTORY = {"type": "history", "ref": "own", "epoch": "e", "seq": 4, "messages": []}


def delta(seq: int, first: int | None = None) -> dict[str, Any]:
    return {"type": "delta", "seq": seq, "first_seq": first or seq}


def started_follower() -> Follower:
    follower = Follower("c", "own")
    follower.take(HISTORY)
    return follower


def pending_events(follower: Follower) -> list[Any]:
    """The types, or the seqs, of what is still to be read."""
    frames = [follower._frames.get_nowait() for _ in range(follower._frames.qsize())]
    return [frame.get("seq") if frame["type"] == "delta" else frame["type"] for frame in frames]  # type: ignore[union-attr]


def test_what_was_told_comes_no_second_time() -> None:
    follower = started_follower()
    for frame in (delta(4), delta(5), delta(5), delta(7, first=6), delta(6)):
        follower.take(frame)
    assert pending_events(follower) == ["history", 5, 7]


def test_what_comes_behind_a_hole_waits_until_that_is_filled() -> None:
    """As behind a lost connection, where a message may be answered before what was missed comes."""
    follower = started_follower()
    for seq in (9, 5, 6, 7, 8, 9):
        follower.take(delta(seq))
    assert pending_events(follower) == ["history", 5, 6, 7, 8, 9]


def test_nothing_comes_before_the_answer_to_what_was_asked() -> None:
    follower = Follower("c", "own")
    follower.position = Position("e", 4)
    for frame in (delta(9), {"type": "resumed", "ref": "own"}, delta(5)):
        follower.take(frame)
    assert pending_events(follower) == ["resumed", 5]


def test_a_snapshot_is_where_it_goes_on() -> None:
    follower = started_follower()
    for frame in ({"type": "gap"}, {"type": "snapshot", "epoch": "f", "seq": 20}, delta(20), delta(21)):
        follower.take(frame)
    assert pending_events(follower) == ["history", "gap", "snapshot", 21]


def test_answers_to_others_are_not_told_but_another_branch_is() -> None:
    follower = started_follower()
    for frame in (HISTORY | {"ref": "other"}, {"type": "cancelled"}, HISTORY | {"ref": None}):
        follower.take(frame)
    assert pending_events(follower) == ["history", "history"]


@given(chance=st.floats(0, 1))
def test_each_pause_is_random_between_half_and_whole_of_a_growing_bound(chance: float) -> None:
    pauses = list(islice(delays(base_s=1, cap_s=5, chance=lambda: chance), 5))
    for pause, whole in zip(pauses, (1, 2, 4, 5, 5), strict=True):
        assert whole / 2 <= pause <= whole


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8, unique=True).map(sorted), st.integers(0, 8))
def test_a_hole_in_the_journal_is_noticed(ends: list[int], lost: int) -> None:
    spans = list(zip([0, *ends], ends, strict=False))
    if missing := lost < len(spans) - 1:
        del spans[lost]
    position = Position("e", 0)
    for before, seq in spans:
        position.take({"first_seq": before + 1, "seq": seq})
    assert position.holed == missing
    assert position.seq == ends[-1]
