"""What waits to be translated: in order, bounded, and parted into sources of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.translations.waiting import FULL_CHARS, MAX_WAITING_CHARS, Waiting, fitting
from connections.translations.wishes import Wish
from sessions.errors import Overloaded
from sessions.interpreting.source import MAX_SOURCE_CHARS

INTO_CHINESE, INTO_GERMAN = Wish(target="zh"), Wish(target="de")


def test_what_comes_under_one_wish_goes_together_and_another_wish_begins_anew() -> None:
    waiting = Waiting()
    for text, wish in (("Good ", INTO_CHINESE), ("morning. ", INTO_CHINESE), ("Hello.", INTO_GERMAN)):
        waiting.add(text, wish)
    parts = [waiting.take(0), waiting.take(0)]
    assert [(part.text, part.wish, part.ends) for part in parts] == [
        ("Good morning. ", INTO_CHINESE, False),
        ("Hello.", INTO_GERMAN, False),
    ]
    assert waiting.head() is None


def test_what_was_taken_too_late_comes_first_again() -> None:
    waiting = Waiting()
    waiting.add("One. ", INTO_CHINESE)
    part = waiting.take(0)
    waiting.add("Two. ", INTO_CHINESE)
    waiting.put_back(part)
    assert waiting.take(0).text == "One. "


def test_so_much_waits_at_most_and_a_sentence_says_so() -> None:
    waiting = Waiting()
    waiting.add("x" * MAX_WAITING_CHARS, INTO_CHINESE)
    with pytest.raises(
        Overloaded, match=r"32000 characters wait to be translated; append more in a moment\."
    ):
        waiting.add("x", INTO_CHINESE)
    assert waiting.chars == MAX_WAITING_CHARS


@pytest.mark.parametrize(
    ("chars", "text", "expected"),
    [
        (0, "Short.", (6, False)),
        (FULL_CHARS, "to the end. And on", (11, True)),
        (FULL_CHARS, '"到此为止。"然后', (7, True)),
        (FULL_CHARS, "3.5 is no end", (13, False)),
        (FULL_CHARS, "a line\nand on", (7, True)),
        (MAX_SOURCE_CHARS - 7, "Two words", (4, True)),
        (MAX_SOURCE_CHARS - 4, "Endless", (4, True)),
    ],
)
def test_a_source_that_is_full_ends_with_its_sentence_else_with_a_word(
    chars: int, text: str, expected: tuple[int, bool]
) -> None:
    assert fitting(text, chars) == expected


@given(st.text(max_size=200), st.integers(FULL_CHARS - 100, MAX_SOURCE_CHARS - 1))
def test_a_part_fits_and_something_goes_on(text: str, chars: int) -> None:
    end, ends = fitting(text, chars)
    assert end <= MAX_SOURCE_CHARS - chars
    assert end == len(text) if not ends else end > 0
