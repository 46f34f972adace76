"""What bodies of chat completions ask for, and the names under which they are refused.

`tests/transcripts/chat-completions` has most refusals.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connections.api import requests
from connections.api.chat_requests import (
    MAX_BIASES,
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_PATTERN_CHARS,
    MAX_VALUE_CHARS,
    MAX_VARIABLES,
    ChatRequest,
    chat_turn_request,
    parse_chat_request,
)
from connections.api.requests import MAX_SCHEMA_BYTES, MAX_TOOLS, Problem
from connections.http import TooManyValues
from engine.messages import (
    Regex,
)
from sessions.limits.bounds import MAX_MESSAGES
from sessions.running.ephemeral import EphemeralRequest
from tests.connections.factory import limits

LIMITS = limits(max_content_chars=20, max_new_tokens=100)
A_SENTENCE = re.compile(r"[`A-Z][^\"'\n]*\.")
"""No quotes of Python's, no types of a library's."""
USER = {"role": "user", "content": "Hello!"}
CUSTOM = {"type": "custom", "custom": {"name": "patch"}}


def parsed(**fields: Any) -> EphemeralRequest:
    """What a chat's body asks."""
    body = msgspec.json.encode({"model": "m", "messages": [USER]} | fields)
    return chat_turn_request(parse_chat_request(body), LIMITS)


def parse_error(**fields: Any) -> tuple[str | None, str]:
    """The field's name and the code."""
    with pytest.raises(Problem) as problem:
        parsed(**fields)
    assert problem.value.status == 400
    assert A_SENTENCE.fullmatch(str(problem.value)), str(problem.value)
    return problem.value.param, problem.value.code


def tool(name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def tools(*names: str, choice: Any = None, **more: Any) -> dict[str, Any]:
    return {"tools": [tool(name) for name in names], "tool_choice": choice, **more}


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), min_size=1, max_size=9))
def test_a_choice_is_a_pattern_of_these_texts_and_no_other(texts: list[str]) -> None:
    made = parsed(guided_choice=texts).spec.format
    assert isinstance(made, Regex)
    assert all(re.fullmatch(made.pattern, text) for text in texts)
    assert not re.fullmatch(made.pattern, "".join(texts) + "!")


def called(**more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    return {"role": "assistant", "content": None, "tool_calls": [call | more]}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"model":"\\ud800"}', b'{"n":' + b"[" * 10_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Problem) as problem:
        parse_chat_request(body)
    assert (problem.value.status, problem.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b"[" * 10_000])
def test_another_value_than_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(Problem, match="object"):
        parse_chat_request(body)


def test_a_body_of_countless_values_is_refused_before_they_are_made() -> None:
    """Each of the empty messages would take fifty times its length."""
    with pytest.raises(TooManyValues):
        parse_chat_request(b'{"model":"m","messages":[' + b"{}," * 1_000_000 + b"{}]}")


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(ChatRequest.__struct_fields__), _values))
def test_whatever_comes_is_asked_or_refused_by_name(fields: dict[str, Any]) -> None:
    with suppress(Problem):
        assert parsed(**fields).messages


def test_every_refusal_of_a_field_is_a_sentence() -> None:
    for field, (neutral, why) in requests._NEUTRAL.items():
        assert A_SENTENCE.fullmatch(why), field
        for value in neutral:
            requests.reject_unsupported({field: msgspec.Raw(msgspec.json.encode(value))})
        with pytest.raises(Problem, match=re.escape(why)):
            requests.reject_unsupported({field: msgspec.Raw(b'{"else":5}')})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [USER] * (MAX_MESSAGES + 1)}, "messages"),
        ({"min_tokens": 101}, "min_tokens"),
        ({"logit_bias": dict.fromkeys(map(str, range(MAX_BIASES + 1)), 1)}, "logit_bias"),
        ({"tools": [tool(str(number)) for number in range(MAX_TOOLS + 1)]}, "tools"),
        ({"tools": [tool(parameters={"x": "y" * MAX_SCHEMA_BYTES})]}, "tools[0].function.parameters"),
        ({"tools": [CUSTOM], "tool_choice": "required"}, "tool_choice"),
        ({"messages": [called(function={"name": "look", "arguments": "[" * 5000})]}, "messages[0].tool_calls[0].function.arguments"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"x": "y" * MAX_SCHEMA_BYTES}}}}, "response_format.json_schema.schema"),
        ({"guided_json": "[" * 5000}, "guided_json"),
        ({"guided_regex": "x" * (MAX_PATTERN_CHARS + 1)}, "guided_regex"),
        ({"guided_grammar": "x" * (MAX_GRAMMAR_CHARS + 1)}, "guided_grammar"),
        ({"guided_choice": ["a"] * (MAX_CHOICES + 1)}, "guided_choice"),
        ({"guided_choice": ["x" * MAX_PATTERN_CHARS]}, "guided_choice"),
        ({"chat_template_kwargs": {"a": "x" * (MAX_VALUE_CHARS + 1)}}, "chat_template_kwargs.a"),
        ({"chat_template_kwargs": {f"a{n}": 1 for n in range(MAX_VARIABLES + 1)}}, "chat_template_kwargs"),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert parse_error(**fields) == (param, "invalid_value")


def test_what_is_not_served_is_not_read_and_a_long_message_is_refused() -> None:
    assert parse_error(functions=[[]] * 1000) == ("functions", "unsupported_parameter")
    long = USER | {"content": "x" * 21}
    assert parse_error(messages=[long]) == ("messages[0].content", "content_too_long")
