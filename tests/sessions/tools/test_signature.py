"""What a function's type hints say: to the model as a JSON Schema, and to its arguments as a check. Both say the same."""

from __future__ import annotations

import datetime as dt
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta

from sessions.tools.function_tools import BadSignature, Signature
from sessions.tools.tool_registry import CallContext, ToolFailed
from tests.sessions.tools.tool_calls import call_of


class Unit(Enum):
    METRE = "m"
    MILE = "mi"


@dataclass
class Point:
    x: int
    y: int = 0


def schema_of(function: Callable[..., Any], **described: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(Signature(function, described).schema)
    return schema


def test_a_schema_says_what_a_function_takes() -> None:
    def walk(
        steps: int,
        days: Annotated[int, Meta(ge=1, description="From one on.")],
        *,
        unit: Unit = Unit.METRE,
        note: str | None = None,
    ) -> None: ...

    assert schema_of(walk, steps="How many.", days="Of the docstring.") == {
        "type": "object",
        "properties": {
            "steps": {"description": "How many.", "type": "integer"},
            "days": {"description": "From one on.", "type": "integer", "minimum": 1},
            "unit": {"$ref": "#/$defs/Unit"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["steps", "days"],
        "additionalProperties": False,
        "$defs": {"Unit": {"title": "Unit", "enum": ["m", "mi"]}},
    }


def test_what_json_lacks_is_made_of_what_it_has() -> None:
    def walk(day: dt.date, to: Point, notes: dict[int, str]) -> None: ...

    given = Signature(walk, {}).bound({"day": "2026-02-03", "to": {"x": 1}, "notes": {"3": "c"}}, call_of())
    assert given == {"day": dt.date(2026, 2, 3), "to": Point(1), "notes": {3: "c"}}


def test_parameters_may_be_called_as_they_like_and_the_context_is_filled_in() -> None:
    """`None` as a default is allowed to the model, too, whatever the hint says."""

    def walk(
        context: CallContext,
        _x: int,
        class_: int,
        __struct_fields__: int,
        arguments: int = 3,
        note: str = None,  # type: ignore[assignment]  # noqa: RUF013 - people write this
    ) -> None: ...

    given, call = {"_x": 1, "class_": 2, "__struct_fields__": 4, "note": None}, call_of()
    assert Signature(walk, {}).bound(given, call) == given | {"arguments": 3, "context": call}
    assert list(schema_of(walk)["properties"]) == ["_x", "class_", "__struct_fields__", "arguments", "note"]


def unhinted(a) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
def several(*a: int) -> None: ...
def any_named(**a: int) -> None: ...
def by_place(a: int, /) -> None: ...
def no_json(a: complex) -> None: ...
def no_type(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def undecidable(a: list[int] | list[str]) -> None: ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (unhinted, "parameter a has no type hint"),
        (several, "parameter a can't be passed by name"),
        (any_named, "parameter a can't be passed by name"),
        (by_place, "parameter a can't be passed by name"),
        (no_json, "parameter a has a type that JSON can't express"),
        (no_type, "name 'Nowhere' is not defined"),
        (undecidable, "parameter a has a type that JSON can't express"),
    ],
)
def test_a_function_that_can_not_be_a_tool_is_refused_with_the_reason(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(BadSignature) as refusal:
        Signature(function, {})
    assert words in str(refusal.value)


HINTS: list[Any] = [
    *(bool, int, float, str, int | None, list[int], list[str | None], dict[str, int], Unit, Point, Any),
    *(Literal["a", "b"], Literal[1, 2], tuple[int, str], list[Point], Point | None, bool | str),
    Annotated[int, Meta(ge=2, le=5)],
    Annotated[str, Meta(min_length=1, max_length=3)],
    Annotated[list[int], Meta(max_length=2)],
]
small = st.integers(-3, 9)
halves = st.integers(-9, 9).map(lambda whole: whole + 0.5)  # 1.0 is a whole number to JSON Schema alone
texts = st.sampled_from(["", "a", "b", "m", "mi", "abcd"])
names = st.sampled_from(["a", "b", "x", "y"])
values = st.recursive(
    st.none() | st.booleans() | small | halves | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)


def function_of(hints: dict[str, Any], optional: set[str]) -> Callable[..., Any]:
    def function(**_: Any) -> None: ...

    function.__annotations__ = dict(hints)
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=hint,
                default=None if name in optional else inspect.Parameter.empty,
            )
            for name, hint in hints.items()
        ]
    )
    return function


@settings(max_examples=50)
@given(st.dictionaries(names, st.sampled_from(HINTS), max_size=3), st.sets(names), st.data())
def test_a_call_passes_the_check_where_the_schema_allows_it_and_only_there(
    hints: dict[str, Any], optional: set[str], data: st.DataObject
) -> None:
    signature = Signature(function_of(hints, optional), {})
    schema = json.loads(signature.schema)
    Draft202012Validator.check_schema(schema)
    requested = {
        name: data.draw(values, name) for name in data.draw(st.sets(st.sampled_from([*hints, "other"])))
    }
    allowed = Draft202012Validator(schema).is_valid(requested)
    try:
        found = signature.bound(requested, call_of())
    except ToolFailed:
        assert not allowed
    else:
        assert allowed
        assert found.keys() == hints.keys()
