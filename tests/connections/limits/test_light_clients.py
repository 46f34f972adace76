"""Who had a small part of the recent work, and only they, work seldom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connections.loop_scheduler import SHARE, LightClients

works = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9)))


def test_all_work_seldom_at_first_and_none_of_equals_does() -> None:
    recent = LightClients()
    assert recent.has("a")
    recent.count("a")
    assert not recent.has("a")  # whoever is alone
    assert recent.has("b")
    for group in "bc" + "abc" * 10:
        recent.count(group)
    assert not any(map(recent.has, "abc"))


@given(works, st.integers(1, 40))
def test_only_the_last_pieces_count(done: list[tuple[str, int]], lately: int) -> None:
    recent = LightClients(lately)
    kept: list[tuple[str, int]] = []
    for group, pieces in done:
        recent.count(group, pieces)
        kept.append((group, pieces))
        while sum(size for _, size in kept) > lately:
            kept.pop(0)
    groups = {group for group, _ in kept}
    total = sum(size for _, size in kept)
    for group in "abcd":
        had = sum(size for one, size in kept if one == group)
        assert recent.has(group) == (SHARE * len(groups) * had <= total)
