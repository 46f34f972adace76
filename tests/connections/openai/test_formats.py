"""The format that a reply has to have, by whichever of its names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api.chat_requests import MAX_CHOICES, MAX_GRAMMAR_CHARS, MAX_PATTERN_CHARS
from connections.api.requests import MAX_SCHEMA_BYTES
from engine.messages import Grammar, JsonObject, JsonSchema, Regex
from tests.connections.openai.request_parsing import completions, parse_error, parsed

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]}
WRITTEN = JsonSchema(json.dumps(SCHEMA, separators=(",", ":")))


def of_schema(schema: Any = SCHEMA, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, JsonObject()),
        ({"response_format": of_schema()}, WRITTEN),
        ({"response_format": of_schema(strict=True)}, WRITTEN),
        ({"guided_json": SCHEMA}, WRITTEN),
        ({"guided_json": json.dumps(SCHEMA)}, WRITTEN),
        ({"guided_regex": "[ab]+"}, Regex("[ab]+")),
        ({"guided_choice": ["yes", "no."]}, Regex(r"(yes|no\.)")),
        ({"guided_grammar": 'start: "a"'}, Grammar('start: "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, WRITTEN),
        ({"structured_outputs": {"regex": "a"}}, Regex("a")),
        ({"structured_outputs": {"choice": ["a"]}}, Regex("(a)")),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, Grammar('start: "a"')),
        ({"structured_outputs": {"json_object": True}}, JsonObject()),
        ({"structured_outputs": {}}, None),
    ],
)
def test_every_name_means_the_same_format_at_both_doors(fields: dict[str, Any], wanted: Any) -> None:
    assert parsed(**fields).spec.format == wanted
    assert [ask.spec.format for ask in completions(prompt="x", **fields)] == [wanted]


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), min_size=1, max_size=9))
def test_a_choice_is_a_pattern_of_these_texts_and_no_other(texts: list[str]) -> None:
    made = parsed(guided_choice=texts).spec.format
    assert isinstance(made, Regex)
    assert all(re.fullmatch(made.pattern, text) for text in texts)
    assert not re.fullmatch(made.pattern, "".join(texts) + "!")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"response_format": of_schema({"x": "y" * MAX_SCHEMA_BYTES})},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": "[" * 5000}, "guided_json"),
        ({"guided_regex": "x" * (MAX_PATTERN_CHARS + 1)}, "guided_regex"),
        ({"guided_grammar": "x" * (MAX_GRAMMAR_CHARS + 1)}, "guided_grammar"),
        ({"guided_choice": ["a"] * (MAX_CHOICES + 1)}, "guided_choice"),
        ({"guided_choice": ["x" * MAX_PATTERN_CHARS]}, "guided_choice"),
    ],
)
def test_a_format_that_is_too_long_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """`tests/transcripts/chat-completions/refusals` has all other refusals."""
    assert parse_error(**fields) == (param, "invalid_value")
