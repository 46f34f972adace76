# ruff: noqa: RUF001 - punctuation of many scripts
"""A growing text falls into sentences, in several scripts, and into pieces of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.translation.sentences import MAX_SEGMENT_CHARS, next_segment

TEXTS = st.text(st.sampled_from('ab 1.?!。？，你はกู\n"”」\u0301👩🏽'), max_size=60)


def parts(text: str, *, final: bool = True) -> list[str]:
    """The closed segments of a text."""
    found, start = [], 0
    while (segment := next_segment(text, start, final=final)) is not None and segment.is_closed:
        found.append(text[segment.start : segment.end])
        start = segment.end
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Good morning. How are you? Fine!", ["Good morning.", "How are you?", "Fine!"]),
        ("你好。你好吗？很好", ["你好。", "你好吗？", "很好"]),
        ("「はい。」そう？！ ええ", ["「はい。」", "そう？！", "ええ"]),
        ("It costs 3.50 today. Dr. J. Smith said so.", ["It costs 3.50 today.", "Dr. J. Smith said so."]),
        ("नमस्ते। कैसे हो?", ["नमस्ते।", "कैसे हो?"]),
        ("كيف حالك؟ بخير", ["كيف حالك؟", "بخير"]),
        ("one line\nanother\n\n", ["one line", "another"]),
        ('He said "no." Then he left.', ['He said "no."', "Then he left."]),
    ],
)
def test_a_text_falls_into_its_sentences(text: str, expected: list[str]) -> None:
    assert parts(text) == expected


def test_a_full_stop_at_the_end_may_become_a_decimal_point() -> None:
    assert parts("It costs 3.", final=False) == []
    assert parts("It costs 3. ", final=False) == ["It costs 3."]


def test_what_has_no_end_is_parted_where_it_has_a_blank_or_anywhere() -> None:
    words = parts("word " * 1000)
    assert max(map(len, words)) <= MAX_SEGMENT_CHARS
    assert all(part.split()[-1] == "word" for part in words)
    endless = parts("x" * 100_000)
    assert {len(part) for part in endless} == {MAX_SEGMENT_CHARS}


@given(TEXTS)
def test_nothing_is_lost_but_the_white_space_between_segments(text: str) -> None:
    assert "".join("".join(parts(text)).split()) == "".join(text.split())


@given(TEXTS, st.data())
def test_no_growth_changes_a_segment_that_was_closed(text: str, data: st.DataObject) -> None:
    grown = data.draw(st.integers(0, len(text)))
    before = parts(text[:grown], final=False)
    assert parts(text)[: len(before)] == before
