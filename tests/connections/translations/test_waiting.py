"""What waits to be translated: in order, bounded, and parted into sources of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.translations.waiting import (
    FULL_CHARS,
    MAX_WAITING_CHARS,
    MAX_WAITING_PARTS,
    Waiting,
    fitting,
)
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


def test_so_many_changes_of_the_language_wait_at_most() -> None:
    """Each is an interpretation of its own, and much larger than its text."""
    waiting = Waiting()
    for number in range(MAX_WAITING_PARTS):
        waiting.add("", (INTO_CHINESE, INTO_GERMAN)[number % 2])
        waiting.add("x", (INTO_CHINESE, INTO_GERMAN)[number % 2])
    waiting.add("y", INTO_GERMAN)
    waiting.add("", INTO_CHINESE)
    with pytest.raises(Overloaded, match="32 pieces in changing languages wait"):
        waiting.add("x", INTO_CHINESE)
    waiting.add("", INTO_GERMAN)
    waiting.add("z", INTO_GERMAN)  # this goes with the last part that has text
    waiting.take(0)
    waiting.add("x", INTO_CHINESE)
    assert len(waiting) == MAX_WAITING_PARTS


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


def test_wishes_without_a_text_are_one_part_however_many_come() -> None:
    waiting = Waiting()
    for wish in (INTO_CHINESE, INTO_GERMAN) * 3:
        waiting.add("", wish)
    waiting.add("Hello. ", INTO_CHINESE)
    for wish in (INTO_GERMAN, INTO_CHINESE):
        waiting.add("", wish)
    waiting.add("Morning.", INTO_CHINESE)
    assert (len(waiting), waiting.take(0).text, len(waiting)) == (1, "Hello. Morning.", 0)


def test_another_wish_is_a_part_though_a_text_waits() -> None:
    waiting = Waiting()
    waiting.add("Hello. ", INTO_CHINESE, ref="e1")
    waiting.add("", INTO_GERMAN)
    parts = [waiting.take(0), waiting.take(0)]
    assert [(part.text, part.wish, part.ref) for part in parts] == [
        ("Hello. ", INTO_CHINESE, "e1"),
        ("", INTO_GERMAN, None),
    ]


def test_what_is_dropped_is_the_part_that_is_next_alone() -> None:
    waiting = Waiting()
    waiting.add("One. ", INTO_CHINESE, ref="e1")
    waiting.add("Two. ", INTO_GERMAN, ref="e2")
    assert (waiting.drop().ref, waiting.take(0).text) == ("e1", "Two. ")


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b. "]), st.sampled_from(["add", "take", "back", "drop"])))
)
def test_what_waits_is_counted_as_it_comes_and_goes(steps: list[tuple[str, str]]) -> None:
    waiting = Waiting()
    for at, (text, act) in enumerate(steps):
        if act == "add" or waiting.head() is None:
            waiting.add(text, (INTO_CHINESE, INTO_GERMAN)[at % 2])
        elif act == "drop":
            waiting.drop()
        elif act == "take":
            waiting.take(0)
        else:
            waiting.put_back(waiting.take(0))
    chars = waiting.chars
    assert chars == sum(len(waiting.take(0).text) for _ in range(len(waiting)))
    assert waiting.chars == 0
