"""What a function's docstring and type hints say, and where functions are found. What is wrong stops the start."""

from __future__ import annotations

import datetime as dt
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec import Meta

from sessions.tools.function_tools import (
    BadSignature,
    InvalidToolFunction,
    Signature,
    discover_functions,
    parse_docstring,
)
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


WEATHER = '''
"""Tools about the weather."""

from sessions.tools.function_tools import tool


@tool(approval="always", idempotent=True)
def sun(city: str) -> str:
    """Say whether the sun shines.

    Args:
        city: Which one.
    """
    return f"It shines on {city}."


def rain() -> str:
    return "None."


@tool(name="sun shine")
def odd() -> str:
    return "Yes."


both = [sun, rain]
number = 3


def bad(what) -> str:
    return what
'''


class Site:
    """A folder of installed distributions, first in the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def module(self, name: str, text: str) -> None:
        (self.folder / f"{name}.py").write_text(text)

    def install(self, name: str, *points: str) -> None:
        """A distribution with these entry points."""
        facts = self.folder / f"{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("\n".join(["[midstream.tools]", *points]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Modules of tests have names of their own, since an import is remembered."""
    monkeypatch.syspath_prepend(tmp_path)
    return Site(tmp_path)


def tool_names(*named: str) -> list[str]:
    return [found.tool.name for found in discover_functions(named)]


def test_without_any_there_are_none() -> None:
    assert tool_names() == []


def test_distributions_bring_tools_and_a_setting_names_functions_and_lists_of_them(site: Site) -> None:
    site.module("weather_a", WEATHER)
    site.install("weather", "a = weather_a:sun", "b = weather_a:rain")
    assert tool_names() == ["sun", "rain"]
    site.module("weather_b", WEATHER.replace("sun", "snow").replace("rain", "hail"))
    assert tool_names("weather_b:both") == ["sun", "rain", "snow", "hail"]
    found = discover_functions(["weather_b:snow"])[-1]
    assert found.tool.description == "Say whether the snow shines."
    assert '"description":"Which one."' in found.tool.parameters
    assert (found.tool.approval.value, found.tool.idempotent) == ("always", True)


def test_an_entry_point_that_can_not_be_imported_is_named(site: Site) -> None:
    site.install("broken", "a = nowhere_at_all:sun")
    with pytest.raises(InvalidToolFunction) as failure:
        discover_functions([])
    for words in ("entry point a = nowhere_at_all:sun of broken", "No module named 'nowhere_at_all'"):
        assert words in str(failure.value)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("weather", "'weather' does not name a function; write module:function"),
        (":sun", "write module:function"),
        ("weather_d:", "write module:function"),
        ("weather_d:snow", "weather_d:snow can't be loaded: AttributeError"),
        ("weather_d:number", "weather_d:number is not a function; its type is int"),
        ("weather_d:bad", "weather_d:bad: bad can't be a tool: parameter what has no type hint"),
        ("weather_d:odd", "its name 'sun shine' is not 1 to 64 of"),
        ("exits_d:sun", "exits_d:sun can't be loaded: SystemExit"),
        ("weather_e:sun", "weather_d:sun and weather_e:sun both have a tool 'sun'."),
    ],
)
def test_what_is_no_tool_is_named_with_the_reason(site: Site, named: str, words: str) -> None:
    site.module("weather_d", WEATHER)
    site.module("weather_e", WEATHER)
    site.module("exits_d", "raise SystemExit('3')")
    with pytest.raises(InvalidToolFunction) as failure:
        discover_functions(["weather_d:sun", named])
    assert words in str(failure.value)
