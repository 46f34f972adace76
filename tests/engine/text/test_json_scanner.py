"""The end of a JSON value is found as soon as it is there, and what is none is known at the first wrong character."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.parser import DEEPEST, LONGEST_ATOM, JsonScanner
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
def test_a_changed_letter_breaks_it_as_it_breaks_a_parser(
    text: str, place: int, letter: str, where: list[int]
) -> None:
    place %= len(text)
    changed = text[:place] + letter + text[place + 1 :]
    read, done, broken = scanned([changed])
    assert scanned(cut(changed, where)) == (read, done, broken)
    if done:
        assert is_json(changed[:read]) or "\\u" in changed  # half a pair of surrogates is left to the parser
    else:
        assert broken or not is_json(changed)


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
        ("{a", 1),
        ('{"a" 1', 5),
        ('{"a": b', 6),
        ('{"a": 01}', 8),
        ('{"a": 1 2', 8),
        ('{"a": 1]', 7),
        ('{"a": 1,}', 8),
        ("[1,]", 3),
        ('["\n', 2),
        ('["\\x', 3),
        ('["\\u12g', 6),
        ("[tru]", 4),
        ("[nulll]", 6),
        ("[" + "1" * LONGEST_ATOM + "1", 1 + LONGEST_ATOM),
    ],
)
def test_what_is_no_json_breaks_at_its_first_wrong_character(text: str, read: int) -> None:
    assert scanned([text]) == scanned(list(text)) == (read, False, True)


def test_it_may_be_nested_as_deep_as_the_bound_says() -> None:
    assert scanned(["[" * DEEPEST + "]" * DEEPEST]) == (2 * DEEPEST, True, False)
    assert scanned(["[" * (DEEPEST + 1)]) == (DEEPEST, False, True)
