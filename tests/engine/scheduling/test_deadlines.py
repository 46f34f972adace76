"""What is due comes in its order; what was removed is gone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.core import Deadlines


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=300), st.integers(0, 50))
def test_what_stays_comes_by_its_time(made: list[tuple[int, bool]], now: int) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for key, (due, _) in enumerate(made):
        deadlines.add(key, due, key)
    for key, (_, stays) in enumerate(made):
        if not stays:
            deadlines.remove(key)
    expected = [(due, key) for key, (due, stays) in enumerate(made) if stays and due <= now]
    assert list(deadlines.due(now)) == [key for _, key in sorted(expected)]
    assert len(deadlines) == sum(stays and due > now for due, stays in made)


def test_what_was_removed_takes_no_room_however_late_it_was_due() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for key in range(1000):
        deadlines.add(key, 1e9, key)
        deadlines.remove(key)
    assert len(deadlines._due) <= 65
