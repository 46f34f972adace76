"""Forms that tools ask users to fill in."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from sessions.tools.calls import FORM_BYTES, UnsupportedForm, form_of, validation_error


def form(required: tuple[str, ...] = (), **fields: Any) -> str:
    return json.dumps({"type": "object", "properties": fields, "required": required})


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "[]",
        "3",
        '{"type": "string"}',
        form(a={"type": "object"}),
        form(a={"type": "string", "enum": []}),
        form(a=3),
        form(required=("b",), a={"type": "string"}),
        form(**{f"f{number}": {"type": "string"} for number in range(33)}),
        form(a={"type": "string", "description": "x" * FORM_BYTES}),
        "[" * 5000,
        '{"type": "object", "properties": {"a": {"type": "string", "title": "\ud800"}}}',
    ],
)
def test_what_is_no_flat_form_is_refused(schema: str) -> None:
    with pytest.raises(UnsupportedForm):
        form_of(schema)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ({"type": "boolean"}, 1, "a must be true or false"),
        ({"type": "integer"}, 1.5, "a must be a whole number"),
        ({"type": "integer"}, True, "a must be a number"),
        ({"type": "number", "minimum": 2}, 1, "a must be 2 or more"),
        ({"type": "string"}, 1, "a must be a text"),
        ({"type": "string"}, "x" * 20_000, "a must be 0 to 16384 characters"),
        ({"type": "string", "minLength": 2}, "x", "a must be 2 to 16384 characters"),
        ({"type": "string", "enum": ["x"]}, "y", "a must be one of the choices"),
        ({"type": "array", "items": {"enum": ["x"]}}, ["y"], "a must be a list of the choices"),
        ({"type": "array", "items": {"anyOf": [{"const": "x"}]}}, "x", "a must be a list of choices"),
        ({"type": "array", "items": {"enum": ["x"]}, "minItems": 1}, [], "a must be 1 to 256 choices"),
    ],
)
def test_what_does_not_fit_is_named(field: dict[str, Any], value: Any, words: str) -> None:
    assert validation_error(form_of(form(a=field)), {"a": value}) == words


def test_what_is_missing_or_was_not_asked_for_is_named() -> None:
    requested = form_of(form(required=("a",), a={"type": "string"}))
    assert validation_error(requested, {}) == "a is missing"
    assert validation_error(requested, {"a": "x", "b": "y"}) == "b was not asked for"


FIELDS = [
    {"type": "boolean"},
    {"type": "integer", "minimum": 0},
    {"type": "number", "maximum": 2},
    {"type": "string", "maxLength": 2},
    {"type": "string", "enum": ["a", "b"]},
    {"type": "string", "oneOf": [{"const": "a"}, {"const": "c"}]},
    {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 2},
    {"type": "array", "items": {"anyOf": [{"const": "a"}, {"const": "c"}]}, "minItems": 1},
]
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([-0.5, 1.0, 2.5, "", "a", "b", "abc"]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=3,
)


@example(field=FIELDS[1], needed=True, answer={"a": 1})
@example(field=FIELDS[2], needed=True, answer={"a": 2.5})
@example(field=FIELDS[6], needed=True, answer={"a": ["a"]})
@given(
    field=st.sampled_from(FIELDS),
    needed=st.booleans(),
    answer=st.dictionaries(st.sampled_from("ab"), values),
)
def test_an_answer_fits_where_its_json_schema_allows_it(
    *, field: dict[str, Any], needed: bool, answer: dict[str, Any]
) -> None:
    schema = json.loads(form(required=("a",) if needed else (), a=field)) | {"additionalProperties": False}
    allowed = Draft202012Validator(schema).is_valid(answer)
    assert (validation_error(form_of(json.dumps(schema)), answer) is None) == allowed
