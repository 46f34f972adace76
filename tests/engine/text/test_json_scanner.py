"""The end of a JSON value is found as soon as it is there, and words that are none are known at their first letters."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.parser import DEEPEST, JsonScanner
from tests.engine.text.parse import cut

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
containers = st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=3), values, max_size=3)
texts = st.builds(
    lambda value, indent, plain: json.dumps(value, indent=indent, ensure_ascii=plain),
    containers,
    st.sampled_from([None, 1]),
    st.booleans(),
)
places = st.lists(st.integers(0, 200), max_size=5)


def scanned(parts: Sequence[str]) -> tuple[int, bool, bool]:
    """How far a value reaches, whether it is whole, and whether it is broken."""
    scanner, read = JsonScanner(), 0
    for part in parts:
        read += scanner.scan(part)
        if scanner.done or scanner.broken:
            break
    return read, scanner.done, scanner.broken


@given(texts, st.text(max_size=5), places)
def test_a_value_ends_where_it_ends_whatever_follows(text: str, behind: str, where: list[int]) -> None:
    assert scanned(cut(text + behind, where)) == (len(text), True, False)


@given(texts, st.integers(0, 99), st.sampled_from('{}[]",:\\x01.e- \n\x00'), places)
def test_a_changed_letter_ends_it_no_earlier_and_no_later_than_a_parser(
    text: str, place: int, letter: str, where: list[int]
) -> None:
    place %= len(text)
    changed = text[:place] + letter + text[place + 1 :]
    read, done, broken = scanned([changed])
    assert scanned(cut(changed, where)) == (read, done, broken)
    if done and is_json(changed[:read]):
        assert is_json(changed) == (not changed[read:].strip())
    else:
        assert not is_json(changed)


def is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        return "out of range" in str(error)  # 7e875 is written as a number is
    return True


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("x", 0),
        ("1 ", 0),
        ('"a"', 0),
        ("{b", 1),
        ('{"a": b', 6),
        ('{"a": 1]', 7),
        ("[tru]x", 5),
        ('["\n', 2),
        ("{true friend", 8),
    ],
)
def test_what_is_no_json_breaks_at_a_letter_that_no_json_has_there(text: str, read: int) -> None:
    assert scanned([text])[0] == scanned(list(text))[0] == read


def test_it_may_be_nested_as_deep_as_the_bound_says() -> None:
    assert scanned(["[" * DEEPEST + "]" * DEEPEST]) == (2 * DEEPEST, True, False)
    assert scanned(["[" * (DEEPEST + 1)]) == (DEEPEST, False, True)
