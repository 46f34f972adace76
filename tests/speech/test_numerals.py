"""Numbers in words become digits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.pocketsphinx_decoder import in_digits
from tests.speech.numbers_in_words import in_words


@given(st.integers(0, 999_999).filter(lambda number: number != 1))
def test_every_number_is_read_as_it_is_said(number: int) -> None:
    assert in_digits(in_words(number)) == str(number)


@given(st.integers(0, 999_999), st.integers(0, 999_999))
def test_numbers_between_words_are_read_each_on_its_own(first: int, second: int) -> None:
    spoken = f"count from {in_words(first)} to {in_words(second)} please"
    assert in_digits(spoken) == f"count from {first} to {second} please"


@given(st.lists(st.sampled_from(["which", "is", "and", "hundred", "thousand", "apples", "my"])))
def test_what_is_no_number_stays(words: list[str]) -> None:
    assert in_digits(" ".join(words)) == " ".join(words)


@pytest.mark.parametrize(
    ("spoken", "written"),
    [
        ("which one is it", "which one is it"),
        ("what is one plus one", "what is 1 plus 1"),
        ("one two three", "1 2 3"),
        ("twenty and five", "20 and 5"),
        ("two hundred and then five", "200 and then 5"),
        ("seventy ten", "70 10"),
        ("zero hundred", "0 hundred"),
        ("nine hundred thousand", "900000"),
        ("", ""),
    ],
)
def test_what_could_be_read_in_two_ways_is_read_as_people_mean_it(spoken: str, written: str) -> None:
    assert in_digits(spoken) == written
