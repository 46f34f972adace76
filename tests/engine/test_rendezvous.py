"""Keys are shared out evenly, and few of them move where a member comes or goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.served_models import ranked

KEYS = [f"conversation {number}" for number in range(2000)]
names = st.lists(st.text(max_size=5), unique=True, min_size=1, max_size=6)


def first(key: str, members: list[str]) -> str:
    return members[ranked(key, members)[0]]


@given(st.text(), names)
def test_all_members_are_ranked_however_they_are_listed(key: str, members: list[str]) -> None:
    order = [members[place] for place in ranked(key, members)]
    assert sorted(order) == sorted(members)
    assert [sorted(members)[place] for place in ranked(key, sorted(members))] == order


@given(st.text(), names, st.text(max_size=5))
def test_a_member_that_comes_or_goes_moves_none_but_its_own(key: str, members: list[str], new: str) -> None:
    without = [member for member in members if member != new]
    if without:
        assert first(key, [*without, new]) in {first(key, without), new}


def test_a_fifth_member_takes_a_fifth() -> None:
    four = ["a", "b", "c", "d"]
    moved = sum(first(key, four) != first(key, [*four, "e"]) for key in KEYS)
    assert 0.15 < moved / len(KEYS) < 0.25


def test_shares_are_even() -> None:
    homes = [first(key, ["a", "b", "c", "d"]) for key in KEYS]
    assert all(0.2 < homes.count(name) / len(KEYS) < 0.3 for name in "abcd")


def test_every_process_ranks_alike() -> None:
    assert [ranked(key, ["one", "two", "three"]) for key in ("a", "b", "c")] == [
        [0, 2, 1],
        [2, 0, 1],
        [0, 1, 2],
    ]
