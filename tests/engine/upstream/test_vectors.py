"""Vectors of an answer go on as they are, or packed."""

from __future__ import annotations

import json
import struct
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from engine.upstream.engine import InvalidVectors, encoded_as, read_vectors

singles = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8)


@given(singles)
def test_a_packed_vector_has_the_same_numbers(numbers: list[float]) -> None:
    packed = encoded_as(Raw(json.dumps(numbers).encode()), packed=True)
    assert list(struct.unpack(f"<{len(numbers)}f", b64decode(json.loads(bytes(packed))))) == numbers


def test_a_vector_of_the_form_that_is_wanted_is_not_touched() -> None:
    assert bytes(encoded_as(Raw(b"[0.10, 1e-3]"), packed=False)) == b"[0.10, 1e-3]"


def answer(*vectors: object) -> bytes:
    return json.dumps({"data": [{"index": i, "embedding": one} for i, one in enumerate(vectors)]}).encode()


@pytest.mark.parametrize(
    ("body", "packed"),
    [
        (b"<html>", False),
        (b'{"data": 3}', False),
        (b'{"x": ' + b"[" * 100_000, False),
        (answer([1.0]), False),
        (answer([1.0], [1.0], [1.0]), False),
        (answer([1.0], {"x": 1}), False),
        (answer([1.0], ["x"]), True),
        (answer([1.0], ["x"]), False),
        (answer([1.0], "AACAPw=="), True),
        (answer([1.0], [1e300]), True),
        (answer([1.0], "?"), False),
        (b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}', False),
    ],
)
async def test_what_is_no_answer_for_two_texts_is_none(body: bytes, *, packed: bool) -> None:
    with pytest.raises(InvalidVectors):
        await read_vectors(body, 2, packed=packed)
