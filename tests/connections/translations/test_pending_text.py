"""What waits to be translated: in order, bounded, and parted into sources of bounded length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api.realtime.translation.session import (
    FULL_CHARS,
    MAX_QUEUED_CHARS,
    MAX_QUEUED_PARTS,
    InputQueue,
    TranslationOptions,
    fitting,
)
from sessions.errors import Overloaded
from sessions.translation.interpretation import MAX_SOURCE_CHARS

INTO_CHINESE, INTO_GERMAN = TranslationOptions(target="zh"), TranslationOptions(target="de")


def test_what_comes_under_one_wish_goes_together_and_another_wish_begins_anew() -> None:
    queue = InputQueue()
    for text, options in (("Good ", INTO_CHINESE), ("morning. ", INTO_CHINESE), ("Hello.", INTO_GERMAN)):
        queue.add(text, options)
    parts = [queue.take(0), queue.take(0)]
    assert [(part.text, part.options, part.ends) for part in parts] == [
        ("Good morning. ", INTO_CHINESE, False),
        ("Hello.", INTO_GERMAN, False),
    ]
    assert queue.head() is None


def test_what_was_taken_too_late_comes_first_again() -> None:
    queue = InputQueue()
    queue.add("One. ", INTO_CHINESE)
    part = queue.take(0)
    queue.add("Two. ", INTO_CHINESE)
    queue.put_back(part)
    assert queue.take(0).text == "One. "


def test_so_much_waits_at_most_and_a_sentence_says_so() -> None:
    queue = InputQueue()
    queue.add("x" * MAX_QUEUED_CHARS, INTO_CHINESE)
    with pytest.raises(
        Overloaded, match=r"32000 characters are waiting for translation; append more in a moment\."
    ):
        queue.add("x", INTO_CHINESE)
    assert queue.chars == MAX_QUEUED_CHARS


def test_so_many_changes_of_the_language_wait_at_most() -> None:
    """Each is an interpretation of its own, and much larger than its text."""
    queue = InputQueue()
    for number in range(MAX_QUEUED_PARTS):
        queue.add("x", (INTO_CHINESE, INTO_GERMAN)[number % 2])
    queue.add("y", INTO_GERMAN)
    with pytest.raises(Overloaded, match="32 pieces in changing languages are waiting"):
        queue.add("x", INTO_CHINESE)
    queue.add("z", INTO_GERMAN)  # this goes with the last part
    queue.take(0)
    queue.add("x", INTO_CHINESE)
    assert len(queue) == MAX_QUEUED_PARTS


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


def test_what_is_dropped_is_the_part_that_is_next_alone() -> None:
    queue = InputQueue()
    queue.add("One. ", INTO_CHINESE, ref="e1")
    queue.add("Two. ", INTO_GERMAN, ref="e2")
    assert (queue.drop().ref, queue.take(0).text) == ("e1", "Two. ")


@given(st.lists(st.tuples(st.sampled_from(["a", "b. "]), st.sampled_from(["add", "take", "back", "drop"]))))
def test_what_waits_is_counted_as_it_comes_and_goes(steps: list[tuple[str, str]]) -> None:
    queue = InputQueue()
    for at, (text, act) in enumerate(steps):
        if act == "add" or queue.head() is None:
            queue.add(text, (INTO_CHINESE, INTO_GERMAN)[at % 2])
        elif act == "drop":
            queue.drop()
        elif act == "take":
            queue.take(0)
        else:
            queue.put_back(queue.take(0))
    chars = queue.chars
    assert chars == sum(len(queue.take(0).text) for _ in range(len(queue)))
    assert queue.chars == 0
