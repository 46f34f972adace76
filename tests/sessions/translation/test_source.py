"""A source grows; it neither shrinks nor changes, and what comes twice is taken once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessions.translation.interpretation import GrowingText
from sessions.turn.interfaces import Growth


def take(source: GrowingText, off: int, text: str, *, final: bool = False) -> bool:
    """Whether anything was new."""
    growth = Growth(off=off, text=text, final=final)
    if (new := source.news(growth)) is None:
        return False
    source.grow(new, final=final)
    return True


@given(st.text(max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40))))
def test_repeated_and_overlapping_growth_is_taken_once(text: str, spans: list[tuple[int, int]]) -> None:
    source = GrowingText()
    for start, end in spans:
        if start <= len(source.text):
            take(source, start, text[start:end])
        assert text.startswith(source.text)
    take(source, len(source.text), text[len(source.text) :], final=True)
    assert (source.text, source.is_final) == (text, True)
    assert not take(source, 0, text, final=True)
