"""What a JSON text would make is known before it is made."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.http import MAX_QUOTES, TooManyValues, check_json_limits
from sessions.limits.bounds import MAX_CONTAINERS, MAX_DEPTH, MAX_VALUES, SMALL_BYTES

PADDING = '"' + "x" * SMALL_BYTES + '"'
VALUES = st.recursive(
    st.none() | st.text(max_size=30) | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=40,
)


def long(inner: str) -> bytes:
    return f"[{PADDING},{inner}]".encode()


@pytest.mark.parametrize(
    "inner",
    [
        ",".join(["{}"] * MAX_CONTAINERS),
        ",".join(["0"] * (MAX_VALUES + 1)),
        ",".join(['""'] * (MAX_VALUES * 3)),
        "[" * MAX_DEPTH + "]" * MAX_DEPTH,
        '{"a":' * MAX_DEPTH + "0" + "}" * MAX_DEPTH,
        "[]," * MAX_DEPTH + "[]" + '""' * (MAX_QUOTES // 2 + 1),
    ],
)
def test_more_than_may_be_is_refused(inner: str) -> None:
    with pytest.raises(TooManyValues):
        check_json_limits(long(inner))


@pytest.mark.parametrize(
    "text", ['{"a":[' * 20_000, '\\"' * 20_000, "{" * 9_000 + "\\\\", '"' + "," * 99_000, "[,]" * 3_000]
)
def test_what_stands_in_strings_counts_for_nothing(text: str) -> None:
    check_json_limits(json.dumps([text] * 2).encode())


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


@given(VALUES)
def test_the_depth_is_that_of_the_value(value: Any) -> None:
    deep = depth_of([value])
    for around, refused in (
        (MAX_DEPTH - deep, nullcontext()),
        (MAX_DEPTH - deep + 1, pytest.raises(TooManyValues)),
    ):
        text = f"{'[' * around}{json.dumps([value])}{']' * around}{' ' * SMALL_BYTES}".encode()
        with refused:
            check_json_limits(text)


def test_a_text_that_was_cut_off_is_not_too_deep() -> None:
    """The decoder says better what is wrong with it."""
    whole = json.dumps([[["word"] * 9] * 100] * 40).encode()
    check_json_limits(whole[:-1])
    check_json_limits(whole[:-5])


LISTS = b"[" + b"[]," * MAX_DEPTH + b"[]]"
"""So many that a text is looked at closely."""


@given(st.binary(max_size=400) | st.text('[]{}",\\', max_size=40).map(str.encode))
def test_whatever_bytes_come_it_has_an_end(text: bytes) -> None:
    with suppress(TooManyValues):
        check_json_limits(LISTS + text + b" " * SMALL_BYTES)


def test_what_closes_without_an_end_is_not_too_deep() -> None:
    check_json_limits(LISTS + b"]" * 2_000_000)


@pytest.mark.parametrize(
    "text", ['"' * 999_999, '"' + '\\"' * 999_999, '"' + "x" * 2_000_000, "\\" * 1_999_999]
)
def test_a_string_without_an_end_is_looked_at_once(text: str) -> None:
    with suppress(TooManyValues):
        check_json_limits(LISTS + text.encode())
