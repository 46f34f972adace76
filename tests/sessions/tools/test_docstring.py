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
SPHINX = """Find trains.

    :param start: Where from,
        with the country.
    :param str end: Where to: any place.
    :returns: Their numbers.

    Those of today alone.
    """


@pytest.mark.parametrize("text", [GOOGLE, SPHINX])
def test_parameters_are_described_by_both_customs(text: str) -> None:
    found = parse_docstring(text).parameters
    assert found["start"] == "Where from, with the country."
    assert found["end"] == "Where to: any place."


@pytest.mark.parametrize("text", [GOOGLE, SPHINX])
def test_the_rest_describes_the_function(text: str) -> None:
    description = parse_docstring(text).description
    assert description.splitlines()[0] == "Find trains."
    assert description.endswith("Those of today alone.")
    assert "Where" not in description
    assert "numbers" not in description


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_no_docstring_says_nothing(text: str | None) -> None:
    assert parse_docstring(text).description == ""
    assert parse_docstring(text).parameters == {}


@given(st.text(alphabet="ab:\n \tArgs()*param", max_size=60))
def test_any_docstring_can_be_read(text: str) -> None:
    parse_docstring(text)
