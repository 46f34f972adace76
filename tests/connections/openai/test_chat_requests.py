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


def test_alternatives_alone_too_many_or_of_another_type_are_refused_by_name() -> None:
    assert parse_error(top_logprobs=3) == ("top_logprobs", "invalid_value")
    assert parse_error(logprobs=True, top_logprobs=21) == ("top_logprobs", "invalid_value")
    assert parse_error(logprobs=True, top_logprobs=-1) == ("top_logprobs", "invalid_value")
    assert parse_error(logprobs=True, top_logprobs=True) == ("top_logprobs", "invalid_type")
    assert parse_error(logprobs=5) == ("logprobs", "invalid_type")


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


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": "Hello!"}, "messages", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [USER, {"role": "user"}]}, "messages[1].content", "invalid_value"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "invalid_value"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
            "messages[0].function_call",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].image_url",
            "unsupported_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "invalid_value",
        ),
        ({"messages": [USER | {"content": "x" * 21}]}, "messages[0].content", "content_too_long"),
        ({"temperature": 2.5}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"seed": -2}, "seed", "invalid_value"),
        ({"top_k": -2}, "top_k", "invalid_value"),
        ({"seed": 10**30}, "seed", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": -2}, "max_completion_tokens", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": ["x"] * 9}, "stop", "invalid_value"),
        ({"n": True}, "n", "invalid_type"),
        ({"n": 0}, "n", "invalid_value"),
        ({"n": 5}, "n", "invalid_value"),
        ({"model": None}, "model", "invalid_type"),
        ({"min_p": 1.1}, "min_p", "invalid_value"),
        ({"presence_penalty": 2.1}, "presence_penalty", "invalid_value"),
        ({"frequency_penalty": -2.1}, "frequency_penalty", "invalid_value"),
        ({"min_tokens": 101}, "min_tokens", "invalid_value"),
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"five": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"-5": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {str(2**31): 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": dict.fromkeys(map(str, range(MAX_BIASES + 1)), 1)}, "logit_bias", "invalid_value"),
    ],
)
def test_a_refusal_names_its_field(fields: dict[str, Any], param: str, code: str) -> None:
    assert parse_error(**fields) == (param, code)


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


@pytest.mark.parametrize(
    "fields",
    [
        {"repeat_penalty": 1.1},
        {"thinking_budget": 100},
        {"include_stop_str_in_output": True},
        {"suffix": "The end."},
        {"best_of": 2},
        {"echo": True},
        {"documents": [{"text": "x"}]},
        {"allowed_token_ids": [5]},
        {"mirostat": 2},
        {"grammar": "root ::= x"},
        {"regex": "a"},
        {"ebnf": "x"},
        {"json_schema": {}},
        {"functions": [{"name": "f"}], "tool_choice": "none"},
    ],
)
def test_a_field_that_would_change_the_text_is_never_dropped(fields: dict[str, Any]) -> None:
    (field, *_) = fields
    assert parse_error(**fields) == (field, "unsupported_parameter")


def part(kind: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": kind}]}]}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (part("image_url"), "This model does not take images."),
        (part("input_audio"), "This server does not take sound."),
        (part("file"), "This server does not take files."),
        (part("something"), "This server takes text only."),
        ({"functions": [{}]}, "This server takes `tools` in place of `functions`."),
        ({"frequency_penalty": 3}, "`frequency_penalty` must be from -2 to 2."),
        ({"n": 5}, "`n` must be from 1 to 4."),
        ({"logit_bias": {"a": 1}}, "`logit_bias` must have ids of tokens as its names."),
        ({"temperature": "hot"}, "`temperature` must be a number."),
        ({"temperature": 3}, "`temperature` must be from 0 to 2."),
        ({"top_p": 0}, "`top_p` must be from 0.000001 to 1."),
        ({"max_tokens": 0}, "`max_tokens` must be 1 or more, or -1 for no limit."),
        ({"messages": []}, "`messages` must have at least one message."),
        ({"messages": [{"role": "user"}]}, "`messages[0].content` is missing."),
        ({"messages": [USER | {"role": "narrator"}]}, "`messages[0].role` must be system, developer, user, assistant or tool."),
        ({"messages": [USER | {"content": "x" * 21}]}, "The message is too long: it has 21 characters, and 20 are allowed."),
        ({"stop": 5}, "`stop` must be a string or a list."),
        ({"model": None}, "`model` must be a string."),
    ],
)  # fmt: skip
def test_a_refusal_is_a_sentence_that_an_end_user_can_read(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Problem) as problem:
        parsed(**fields)
    assert str(problem.value) == sentence


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
