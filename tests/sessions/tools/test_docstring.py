"""What a docstring says to the model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.tools.function_tools import parse_docstring

GOOGLE = """Find trains.

    Those of today alone.

    Args:
        start: Where from,
            with the country.
        end (str): Where to: any place.
        *more: What else.

    Returns:
        Their numbers.
    """


def test_parameters_are_described_by_their_section_and_the_function_by_what_is_above() -> None:
    found = parse_docstring(GOOGLE)
    assert found.parameters["start"] == "Where from, with the country."
    assert found.parameters["end"] == "Where to: any place."
    assert found.description == "Find trains.\n\nThose of today alone."


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_no_docstring_says_nothing(text: str | None) -> None:
    assert parse_docstring(text).description == ""
    assert parse_docstring(text).parameters == {}


@given(st.text(alphabet="ab:\n \tArgs()*param", max_size=60))
def test_any_docstring_can_be_read(text: str) -> None:
    parse_docstring(text)
