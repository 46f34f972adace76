"""What a body asks for, and the names under which it is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api import requests
from connections.api.chat_requests import MAX_BIASES, chat_turn_request, parse_chat_request
from connections.api.requests import Problem
from connections.http import TooManyValues
from engine.messages import PLAIN, Message
from sessions.limits.bounds import MAX_MESSAGES
from tests.connections.openai.request_parsing import A_SENTENCE, LIMITS, USER, parse_error, parsed


def test_a_bare_request_leaves_all_to_the_model() -> None:
    ask = parsed()
    assert ask.messages == (Message("user", "Hello!"),)
    assert all(getattr(ask.params, field) in (None, ()) for field in ask.params.__struct_fields__)


def test_null_is_as_good_as_nothing() -> None:
    names = ("stream", "stream_options", "stop", "max_tokens", "temperature", "n", "tools", "logprobs")
    assert parsed(**dict.fromkeys(names)) == parsed()


def test_logprobs_are_asked_for_alone_or_with_alternatives() -> None:
    assert parsed(logprobs=False).params.top_logprobs is None
    assert parsed(logprobs=False, top_logprobs=0).params.top_logprobs is None
    assert parsed(logprobs=True).params.top_logprobs == 0
    assert parsed(logprobs=True, top_logprobs=None).params.top_logprobs == 0
    assert parsed(logprobs=True, top_logprobs=20).params.top_logprobs == 20


def test_a_temperature_of_zero_is_greedy() -> None:
    assert parsed(temperature=0).params.do_sample is False


def test_the_newer_name_of_the_length_counts() -> None:
    assert parsed(max_tokens=5).params.max_new_tokens == 5
    assert parsed(max_tokens=5, max_completion_tokens=6).params.max_new_tokens == 6


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_length_is_at_most_the_window_and_may_be_without_limit(field: str) -> None:
    """Agents send what their own models can write."""
    assert parsed(**{field: 32_000}).params.max_new_tokens == LIMITS.max_new_tokens
    assert [parsed(**{field: none}).params.max_new_tokens for none in (-1, None)] == [None, None]


def test_an_assistants_message_may_be_empty_and_long() -> None:
    for content in (None, "", "x" * 50):
        ask = parsed(messages=[{"role": "assistant", "content": content}, USER])
        assert ask.messages[0] == Message("assistant", content or "")


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"model":"\\ud800"}', b'{"n":' + b"[" * 10_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Problem) as problem:
        parse_chat_request(body)
    assert (problem.value.status, problem.value.error_code) == (400, "invalid_json")


def test_a_body_of_countless_values_is_refused_before_they_are_made() -> None:
    """Each of the empty messages would take fifty times its length."""
    with pytest.raises(TooManyValues):
        parse_chat_request(b'{"model":"m","messages":[' + b"{}," * 1_000_000 + b"{}]}")


def test_a_chat_has_so_many_messages_and_no_more() -> None:
    messages = [{"role": "user", "content": "x"}] * (MAX_MESSAGES + 1)
    assert parse_error(messages=messages) == ("messages", "invalid_value")


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b"[" * 10_000])
def test_another_value_than_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(Problem, match="object"):
        parse_chat_request(body)


def test_what_is_not_served_is_not_read() -> None:
    """However long it is; that it is there is enough."""
    lists: list[Any] = [[]] * 1000
    assert parse_error(functions=lists) == ("functions", "unsupported_parameter")
    assert parsed(something=lists) == parsed()


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=9,
)
_names = st.sampled_from(
    [
        "model",
        "messages",
        "stream",
        "stop",
        "seed",
        "n",
        "tools",
        "stream_options",
        "temperature",
        "max_tokens",
        "logprobs",
        "top_logprobs",
        "tool_choice",
        "response_format",
        "structured_outputs",
        "guided_json",
        "logit_bias",
        "reasoning",
        "think",
        "chat_template_kwargs",
        "continue_final_message",
    ]
)


@given(st.dictionaries(_names, _values))
def test_whatever_comes_is_asked_or_refused_by_name(fields: dict[str, Any]) -> None:
    with suppress(Problem):
        assert parsed(**fields).messages


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": -1},
        {"seed": -1},
        {"min_p": 0},
        {"min_tokens": 0},
        {"n": 1},
        {"ignore_eos": False},
        {"skip_special_tokens": True},
        {"repeat_penalty": 1},
        {"repeat_penalty": 1.0},
        {"logit_bias": {}},
        {"tools": []},
        {"functions": [{"name": "f"}], "function_call": "none"},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"chat_template_kwargs": {}},
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"reasoning_effort": "auto"},
        {"parallel_tool_calls": False},
        {"continue_final_message": False, "add_generation_prompt": True},
        {"include_reasoning": True},
        {"suffix": ""},
        {"verbosity": "medium"},
        {"user": "ann", "store": True, "something_new": {"a": [1]}},
    ],
)
def test_a_field_that_changes_nothing_passes(fields: dict[str, Any]) -> None:
    ask = parsed(**fields)
    assert ask.params.seed is None
    assert ask.params.top_k in (None, 0)
    assert msgspec.structs.replace(ask.params, top_k=None) == parsed().params
    assert (ask.spec, ask.replies) == (PLAIN, 1)


def test_every_refusal_of_a_field_is_a_sentence() -> None:
    for field, (neutral, why) in requests._NEUTRAL.items():
        assert A_SENTENCE.fullmatch(why), field
        for value in neutral:
            requests.reject_unsupported({field: msgspec.Raw(msgspec.json.encode(value))})
        with pytest.raises(Problem, match=re.escape(why)):
            requests.reject_unsupported({field: msgspec.Raw(b'{"else":5}')})


def test_a_system_message_alone_is_answered() -> None:
    """As OpenAI and vLLM do: the model's template decides whether it can be."""
    alone = [{"role": "system", "content": "Say hello."}]
    assert parsed(messages=alone).messages == (Message("system", "Say hello."),)


def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    body = b"\xef\xbb\xbf" + msgspec.json.encode({"model": "m", "messages": [USER]})
    assert chat_turn_request(parse_chat_request(body), LIMITS) == parsed()


@pytest.mark.parametrize(("verbosity", "ignored"), [("low", ("verbosity",)), ("medium", ()), (None, ())])
def test_verbosity_is_a_hint(verbosity: str | None, ignored: tuple[str, ...]) -> None:
    assert parsed(verbosity=verbosity).ignored == ignored


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": [USER | {"content": "x" * 21}]}, "messages[0].content", "content_too_long"),
        ({"min_tokens": 101}, "min_tokens", "invalid_value"),
        ({"logit_bias": dict.fromkeys(map(str, range(MAX_BIASES + 1)), 1)}, "logit_bias", "invalid_value"),
    ],
)
def test_a_refusal_by_a_limit_names_its_field(fields: dict[str, Any], param: str, code: str) -> None:
    """`tests/transcripts/chat-completions/refusals` has all other fields."""
    assert parse_error(**fields) == (param, code)
