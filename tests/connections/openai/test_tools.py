"""The tools of a request, the calls in its history, and the names under which they are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api.requests import MAX_SCHEMA_BYTES, MAX_TOOLS
from engine.messages import PLAIN, Message, ReplySpec, Tool, ToolCall
from tests.connections.openai.request_parsing import USER, parse_error, parsed

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
NAMES = st.text(st.sampled_from("abzAZ019_-"), min_size=1, max_size=64)


def tool(name: str = "look", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def called(**more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    return {"role": "assistant", "content": None, "tool_calls": [call | more]}


RESULT = {"role": "tool", "tool_call_id": "c1", "content": "A tree."}


def test_a_tool_is_its_name_its_words_and_its_schema_as_it_was_written() -> None:
    spec = parsed(tools=[tool(description="Looks.", parameters=SCHEMA, strict=True), tool("bare")]).spec
    written = '{"type":"object","properties":{"b":{"type":"string"},"a":{"type":"integer"}}}'
    assert spec.tools == (Tool("look", "Looks.", written), Tool("bare"))
    assert (spec.tool_choice, spec.parallel_calls) == ("auto", True)


def test_one_call_at_a_time_may_be_asked_for() -> None:
    assert parsed(tools=[tool()], parallel_tool_calls=False).spec.parallel_calls is False


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_the_choice_is_the_models_or_not(choice: str) -> None:
    assert parsed(tools=[tool()], tool_choice=choice).spec.tool_choice == choice


def test_one_function_may_be_asked_for_by_its_name() -> None:
    spec = parsed(tools=[tool(), tool("go")], tool_choice=named("go")).spec
    assert (spec.tool_choice, spec.tool_name) == ("named", "go")


def test_some_of_the_tools_may_be_allowed() -> None:
    for mode in ("auto", "required"):
        allowed = {"mode": mode, "tools": [named("go")]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        spec = parsed(tools=[tool(), tool("go")], tool_choice=choice).spec
        assert (spec.tools, spec.tool_choice) == ((Tool("go"),), mode)


def test_who_forbids_calls_shows_no_tools() -> None:
    assert parsed(tools=[tool()], tool_choice="none").spec.shown_tools == ()
    assert parsed(tool_choice="none").spec == PLAIN


def test_a_tool_that_is_no_function_is_left_out_and_named() -> None:
    custom = {"type": "custom", "custom": {"name": "patch"}}
    ask = parsed(tools=[custom, tool(), custom])
    assert (ask.spec.tools, ask.ignored) == ((Tool("look"),), ("tools[0]", "tools[2]"))
    assert (parsed(tools=[custom]).spec, parsed(tools=[tool()]).ignored) == (PLAIN, ())
    assert parse_error(tools=[custom], tool_choice="required") == ("tool_choice", "invalid_value")


def test_a_tool_may_be_described_at_length() -> None:
    words = "Looks. " * 5_000
    assert parsed(tools=[tool(description=words)]).spec.tools[0].description == words


def test_a_format_has_no_effect_on_a_reply_that_must_call() -> None:
    form = {"response_format": {"type": "json_object"}, "tools": [tool()]}
    for choice in ("required", named("look")):
        assert parsed(**form, tool_choice=choice).spec.format is None
    assert parsed(**form, tool_choice="auto").spec.format is not None


@given(NAMES)
def test_any_name_of_letters_digits_and_lines_is_taken(name: str) -> None:
    assert parsed(tools=[tool(name)]).spec == ReplySpec(tools=(Tool(name),))


def test_calls_and_their_results_stand_in_the_history() -> None:
    messages = parsed(messages=[USER, called(), RESULT]).messages
    assert messages[1:] == (
        Message("assistant", "", calls=(ToolCall("c1", "look", '{"a": 1}'),)),
        Message("tool", "A tree.", call_id="c1"),
    )


def test_a_call_without_arguments_has_an_empty_object() -> None:
    for function in ({"name": "look"}, {"name": "look", "arguments": ""}):
        messages = parsed(messages=[USER, called(function=function), RESULT]).messages
        assert messages[1].calls == (ToolCall("c1", "look", "{}"),)


def test_what_a_tool_said_may_be_long_and_in_parts() -> None:
    """Its length is bounded by the body and by the window, as an assistant's is."""
    parts = [{"type": "text", "text": "x" * 30}, {"type": "text", "text": "y"}]
    messages = parsed(messages=[USER, called(), RESULT | {"content": parts}]).messages
    assert messages[2].content == "x" * 30 + "\ny"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_what_was_thought_is_taken_back(field: str) -> None:
    messages = parsed(
        messages=[USER, {"role": "assistant", "content": "A tree.", field: "Let me see."}, USER]
    ).messages
    assert messages[1] == Message("assistant", "A tree.", reasoning="Let me see.")


def test_what_was_thought_may_be_a_part() -> None:
    parts = [
        {"type": "thinking", "thinking": "Let me see."},
        {"type": "reasoning", "text": "Hm."},
        {"type": "text", "text": "A tree."},
    ]
    messages = parsed(messages=[USER, {"role": "assistant", "content": parts}, USER]).messages
    assert messages[1] == Message("assistant", "A tree.", reasoning="Let me see.\nHm.")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool(str(number)) for number in range(MAX_TOOLS + 1)]}, "tools"),
        ({"tools": [tool(parameters={"x": "y" * MAX_SCHEMA_BYTES})]}, "tools[0].function.parameters"),
        (
            {"messages": [called(function={"name": "look", "arguments": "[" * 5000})]},
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_what_is_too_much_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """`tests/transcripts/chat-completions/refused-tools` has all other refusals."""
    assert parse_error(**fields) == (param, "invalid_value")
