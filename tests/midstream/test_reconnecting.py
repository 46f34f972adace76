"""Where a client resumes, and after which pauses."""

from __future__ import annotations

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from midstream.client import Position, delays


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
