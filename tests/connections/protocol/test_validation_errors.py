"""What is wrong with a value, in words for people."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from connections.protocol.base import Name
from connections.protocol.errors import validation_problem


class Inner(msgspec.Struct, kw_only=True):
    role: str = ""


class Value(msgspec.Struct, kw_only=True):
    """One field of each kind."""

    needed: int
    number: float | None = None
    flag: bool = False
    either: str | list[Inner] = ""
    texts: dict[str, Annotated[str, Meta(max_length=3)]] = {}
    few: Annotated[list[int], Meta(max_length=1)] = []
    text: Annotated[str, Meta(min_length=2)] = "ab"
    page: Annotated[int, Meta(ge=1, le=200)] = 1
    name: Name = "a"
    mode: Literal["keep", "rollback"] = "keep"


def full_message(**fields: Any) -> str:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.json.decode(msgspec.json.encode({"needed": 1} | fields), type=Value)
    return validation_problem(wrong.value).full_message(whole="The body")


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"needed": "one"}, "`needed` must be a whole number."),
        ({"needed": None}, "`needed` must be a whole number."),
        ({"number": "hot"}, "`number` must be a number."),
        ({"flag": 1}, "`flag` must be true or false."),
        ({"either": 5}, "`either` must be a string or a list."),
        ({"either": ["x"]}, "`either[0]` must be an object."),
        ({"either": [{}, {"role": 1}]}, "`either[1].role` must be a string."),
        ({"texts": []}, "`texts` must be an object."),
        ({"texts": {"a": "long"}}, "`texts[...]` must have at most 3 characters."),
        ({"few": [1, 2]}, "`few` must have at most 1 items."),
        ({"text": "a"}, "`text` must have at least 2 characters."),
        ({"page": 0}, "`page` must be at least 1."),
        ({"page": 201}, "`page` must be at most 200."),
        ({"name": "a b"}, "`name` may contain only letters, digits, and . _ : -"),
        ({"mode": "sing"}, "`mode` has an unknown value."),
    ],
)
def test_a_field_is_named_with_what_it_must_be(fields: dict[str, Any], sentence: str) -> None:
    assert full_message(**fields) == sentence


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.json.decode(b"{}", type=Value)
    missing = validation_problem(wrong.value)
    assert (missing.field, missing.is_missing) == ("needed", True)
    assert missing.full_message(whole="The body") == "`needed` is missing."


def test_a_value_of_another_kind_is_wrong_as_a_whole() -> None:
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.json.decode(b"[]", type=Value)
    assert validation_problem(wrong.value).full_message(whole="The body") == "The body must be an object."
