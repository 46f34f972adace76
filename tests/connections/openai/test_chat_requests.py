"""What bodies of chat completions and completions ask for, and the names under which they are refused.

`tests/transcripts/chat-completions` has most refusals.
"""

from __future__ import annotations

import json
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
    field_names,
    parse_chat_request,
    shows_reasoning,
)
from connections.api.requests import MAX_SCHEMA_BYTES, MAX_TOOLS, Problem
from connections.http import TooManyValues
from engine.messages import (
    PLAIN,
    Grammar,
    JsonObject,
    JsonSchema,
    Message,
    Params,
    Regex,
    ReplySpec,
    Tool,
    ToolCall,
)
from sessions.limits.bounds import MAX_MESSAGES
from tests.connections.openai.request_parsing import (
    A_SENTENCE,
    LIMITS,
    USER,
    completions,
    parse_error,
    parsed,
)

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]}
WRITTEN = json.dumps(SCHEMA, separators=(",", ":"))
SO = {"role": "assistant", "content": "So"}
LOOK, GO = Tool("look"), Tool("go")
LONG = "Looks. " * 5_000
CUSTOM = {"type": "custom", "custom": {"name": "patch"}}
FORM: dict[str, Any] = {"response_format": {"type": "json_object"}}


def tool(name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def tools(*names: str, choice: Any = None, **more: Any) -> dict[str, Any]:
    return {"tools": [tool(name) for name in names], "tool_choice": choice, **more}


def allowed(mode: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool("go")]}}


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"tools": [tool(description=LONG, parameters=SCHEMA, strict=True), tool("go")]}, ReplySpec((Tool("look", LONG, WRITTEN), GO))),
        (tools("look", parallel_tool_calls=False), ReplySpec((LOOK,), parallel_calls=False)),
        *((tools("look", choice=choice), ReplySpec((LOOK,), tool_choice=choice)) for choice in ("auto", "none", "required")),
        (tools("look", "go", choice=tool("go")), ReplySpec((LOOK, GO), tool_choice="named", tool_name="go")),
        *((tools("look", "go", choice=allowed(mode)), ReplySpec((GO,), tool_choice=mode)) for mode in ("auto", "required")),
        (tools("aZ-_9" * 12 + "four"), ReplySpec((Tool("aZ-_9" * 12 + "four"),))),
        (tools(choice="none"), PLAIN),
        ({"tools": [CUSTOM]}, PLAIN),
        # a reply that must call has no format
        (tools("look", choice="required", **FORM), ReplySpec((LOOK,), tool_choice="required")),
        (tools("look", choice=tool("look"), **FORM), ReplySpec((LOOK,), tool_choice="named", tool_name="look")),
        (tools("look", choice="auto", **FORM), ReplySpec((LOOK,), format=JsonObject())),
        # how much is thought
        ({"reasoning_effort": "none"}, ReplySpec(reasoning="off")),
        ({"reasoning_effort": "high"}, ReplySpec(reasoning="high")),
        ({"reasoning": {"effort": "low"}}, ReplySpec(reasoning="low")),
        ({"reasoning": {"enabled": False}}, ReplySpec(reasoning="off")),
        ({"reasoning": {"enabled": True}}, ReplySpec(template={"enable_thinking": True})),
        ({"think": False}, ReplySpec(reasoning="off")),
        ({"think": True}, ReplySpec(template={"enable_thinking": True})),
        ({"think": "medium"}, ReplySpec(reasoning="medium")),
        ({"thinking": {"type": "disabled"}}, ReplySpec(reasoning="off")),
        ({"thinking": {"type": "enabled"}}, ReplySpec(template={"enable_thinking": True})),
        ({"enable_thinking": False}, ReplySpec(reasoning="off")),
        ({"enable_thinking": True}, ReplySpec(template={"enable_thinking": True})),
        ({"chat_template_kwargs": {"enable_thinking": False}}, ReplySpec(template={"enable_thinking": False})),
        ({"chat_template_kwargs": {"a": 1, "b": 0.5, "c": None, "d": "x"}}, ReplySpec(template={"a": 1, "b": 0.5, "c": None, "d": "x"})),
        ({"messages": [USER, SO], "continue_final_message": True, "add_generation_prompt": False}, ReplySpec(continues=True)),
    ],
)  # fmt: skip
def test_what_is_asked_of_a_reply(fields: dict[str, Any], spec: ReplySpec) -> None:
    assert parsed(**fields).spec == spec


def test_who_forbids_calls_shows_no_tools() -> None:
    assert parsed(**tools("look", choice="none")).spec.shown_tools == ()


def of_schema(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, **more}}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"response_format": {"type": "text"}}, None),
        (FORM, JsonObject()),
        ({"response_format": of_schema()}, JsonSchema(WRITTEN)),
        ({"response_format": of_schema(strict=True)}, JsonSchema(WRITTEN)),
        ({"guided_json": SCHEMA}, JsonSchema(WRITTEN)),
        ({"guided_json": json.dumps(SCHEMA)}, JsonSchema(WRITTEN)),
        ({"guided_regex": "[ab]+"}, Regex("[ab]+")),
        ({"guided_choice": ["yes", "no."]}, Regex(r"(yes|no\.)")),
        ({"guided_grammar": 'start: "a"'}, Grammar('start: "a"')),
        ({"structured_outputs": {"json": SCHEMA}}, JsonSchema(WRITTEN)),
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


def called(**more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    return {"role": "assistant", "content": None, "tool_calls": [call | more]}


def asked(arguments: str = '{"a": 1}') -> Message:
    return Message("assistant", "", calls=(ToolCall("c1", "look", arguments),))


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "A tree."}
PARTS = [{"type": "text", "text": "x" * 30}, {"type": "text", "text": "y"}]
THOUGHTS = [
    {"type": "thinking", "thinking": "Let me see."},
    {"type": "reasoning", "text": "Hm."},
    {"type": "text", "text": "A tree."},
]


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ([USER], [Message("user", "Hello!")]),
        ([{"role": "system", "content": "Say hello."}], [Message("system", "Say hello.")]),  # alone: the template decides
        *(([{"role": "assistant", "content": content}], [Message("assistant", content or "")]) for content in (None, "", "x" * 50)),
        ([called(), RESULT], [asked(), Message("tool", "A tree.", call_id="c1")]),
        *(
            ([called(function=function), RESULT], [asked("{}"), Message("tool", "A tree.", call_id="c1")])
            for function in ({"name": "look"}, {"name": "look", "arguments": ""})
        ),
        ([called(), RESULT | {"content": PARTS}], [asked(), Message("tool", "x" * 30 + "\ny", call_id="c1")]),
        *(
            ([SO | {field: "Let me see."}], [Message("assistant", "So", reasoning="Let me see.")])
            for field in ("reasoning_content", "reasoning")
        ),
        ([SO | {"content": THOUGHTS}], [Message("assistant", "A tree.", reasoning="Let me see.\nHm.")]),
    ],
)  # fmt: skip
def test_what_stands_in_the_history(sent: list[Any], read: list[Message]) -> None:
    """What a model or a tool said may be long: its length is bounded by the body and by the window."""
    assert parsed(messages=sent).messages == tuple(read)


@pytest.mark.parametrize(
    ("fields", "params"),
    [
        ({}, Params()),
        # null is as good as nothing
        (dict.fromkeys(("stream", "stream_options", "stop", "max_tokens", "temperature", "n", "tools", "logprobs")), Params()),
        ({"logprobs": False, "top_logprobs": 0}, Params()),
        ({"logprobs": True}, Params(top_logprobs=0)),
        ({"logprobs": True, "top_logprobs": None}, Params(top_logprobs=0)),
        ({"logprobs": True, "top_logprobs": 20}, Params(top_logprobs=20)),
        ({"temperature": 0}, Params(do_sample=False)),
        ({"max_tokens": 5}, Params(max_new_tokens=5)),
        ({"max_tokens": 5, "max_completion_tokens": 6}, Params(max_new_tokens=6)),
        # agents send what their own models can write
        *(({field: 32_000}, Params(max_new_tokens=100)) for field in ("max_tokens", "max_completion_tokens")),
        ({"max_tokens": -1}, Params()),
    ],
)  # fmt: skip
def test_how_a_reply_is_sampled(fields: dict[str, Any], params: Params) -> None:
    assert parsed(**fields).params == params


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
        {"tool_choice": "auto"},
        {"chat_template_kwargs": {}},
        {"presence_penalty": 0},
        {"frequency_penalty": 0.0},
        {"reasoning_effort": "auto"},
        {"parallel_tool_calls": False},
        {"continue_final_message": False, "add_generation_prompt": True},
        {"include_reasoning": True},
        {"suffix": ""},
        {"verbosity": "medium"},
        {"user": "ann", "store": True, "something_new": [[]] * 1000},
    ],
)
def test_a_field_that_changes_nothing_passes(fields: dict[str, Any]) -> None:
    ask = parsed(**fields)
    assert ask.params.top_k in (None, 0)
    assert msgspec.structs.replace(ask.params, top_k=None) == Params()
    assert (ask.spec, ask.replies, ask.ignored) == (PLAIN, 1, ())


def test_hints_and_tools_that_are_no_functions_are_left_out_and_named() -> None:
    assert parsed(verbosity="low").ignored == ("verbosity",)
    ask = parsed(tools=[CUSTOM, tool(), CUSTOM])
    assert (ask.spec.tools, ask.ignored) == ((LOOK,), ("tools[0]", "tools[2]"))


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, True),
        ({"include_reasoning": False}, False),
        ({"reasoning": {"exclude": True}}, False),
        ({"reasoning": {"exclude": False}}, True),
    ],
)
def test_what_is_thought_is_told_unless_it_is_not_wanted(fields: dict[str, Any], shown: bool) -> None:  # noqa: FBT001 - a table
    request = parse_chat_request(msgspec.json.encode({"model": "m", "messages": [USER], **fields}))
    assert shows_reasoning(request) is shown
    assert field_names(request)["reasoning"] == "reasoning_effort"


def test_prompts_are_read_as_they_are_and_as_many_as_there_are() -> None:
    """A prompt may be longer than a message: it holds a whole talk, mostly."""
    (request,) = completions(prompt="Once upon " * 100, max_tokens=5)
    assert (request.messages, request.spec) == ((Message("user", "Once upon " * 100),), ReplySpec(raw=True))
    assert (request.params, request.replies) == (Params(max_new_tokens=5), 1)
    several = completions(prompt=["One", "Two"], n=2, logprobs=3)
    assert [(one.messages[0].content, one.replies) for one in several] == [("One", 2), ("Two", 2)]
    assert [one.params.top_logprobs for one in several] == [3, 3]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b'{"model":"\\ud800"}', b'{"n":' + b"[" * 10_000])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(Problem) as problem:
        parse_chat_request(body)
    assert (problem.value.status, problem.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b"[" * 10_000])
def test_another_value_than_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(Problem, match="object"):
        parse_chat_request(body)


def test_a_byte_order_mark_is_no_part_of_the_body() -> None:
    body = b"\xef\xbb\xbf" + msgspec.json.encode({"model": "m", "messages": [USER]})
    assert chat_turn_request(parse_chat_request(body), LIMITS) == parsed()


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
