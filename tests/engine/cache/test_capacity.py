"""Slots get lengths of a ladder, and change them seldom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.cache.capacity import GROWTH, STEP, Ladder


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1, 100_000))
def test_a_length_holds_what_is_asked_and_wastes_little(longest: int, positions: int, shortest: int) -> None:
    positions = min(positions, longest)
    length = Ladder(longest, shortest=shortest).length_for(positions)
    assert positions <= length <= longest
    assert length <= max(shortest + STEP, positions + STEP, positions * GROWTH + STEP)


@given(st.integers(64, 100_000), st.integers(1, 200_000), st.integers(1, 100_000))
def test_a_change_is_to_more_that_is_needed_or_to_far_less(longest: int, positions: int, now: int) -> None:
    ladder = Ladder(longest)
    length = ladder.length_for(min(now, longest))
    better = ladder.better(length, positions)
    assert better >= min(positions, longest)
    assert better >= length or 3 * better <= length
    assert ladder.better(better, positions) == better
