"""What a request of Anthropic's clients asks of a turn, and the sentences by which it is refused."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api.anthropic.requests import (
    count_turn_request,
    message_turn_request,
    parse_count_request,
    parse_message_request,
)
from connections.api.requests import Problem
from engine.messages import PLAIN, JsonSchema, Message, Params, Tool, ToolCall
from sessions.running.ephemeral import EphemeralRequest
from tests.connections.factory import limits

LIMITS = limits()
HELLO = {"role": "user", "content": "Hello!"}
LOOK = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
CALL = {"type": "tool_use", "id": "c_1", "name": "look", "input": {"at": 1, "in": "ä"}}


def parsed(*messages: dict[str, Any], **fields: Any) -> EphemeralRequest:
    body = {"model": "m", "max_tokens": 8, "messages": list(messages) or [HELLO]} | fields
    return message_turn_request(parse_message_request(json.dumps(body, ensure_ascii=False).encode()), LIMITS)


def parse_error(*messages: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(Problem) as caught:
        parsed(*messages, **fields)
    assert caught.value.status == 400
    return str(caught.value)


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def result(content: Any = "A tree.", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c_1", "content": content, **more}


def test_the_system_prompt_comes_first_as_a_text_or_as_blocks() -> None:
    cached = text("Be kind.", cache_control={"type": "ephemeral"})
    assert parsed(system="Be brief.").messages == (Message("system", "Be brief."), Message("user", "Hello!"))
    assert parsed(system=[text("Be brief."), cached]).messages[0] == Message("system", "Be brief.\nBe kind.")
    assert parsed(system="").messages == parsed(system=None).messages == (Message("user", "Hello!"),)


def test_a_round_of_tools_is_calls_and_results_in_their_order() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "sha256:00"}
    reply = assistant(thought, {"type": "redacted_thinking", "data": "xyz"}, text("Let me look."), CALL)
    answers = user(result(), result([text("Two"), text("lines")], is_error=True), text("Well?"))
    assert parsed(HELLO, reply, answers).messages[1:] == (
        Message(
            "assistant",
            "Let me look.",
            reasoning="Hm.",
            calls=(ToolCall("c_1", "look", '{"at":1,"in":"ä"}'),),
        ),
        Message("tool", "A tree.", call_id="c_1"),
        Message("tool", "Error: Two\nlines", call_id="c_1"),
        Message("user", "Well?"),
    )


def test_neighbours_of_one_role_are_one_message() -> None:
    made = parsed(
        HELLO, user(text("Again!"), text("Please.")), assistant(text("A")), assistant(text("B")), HELLO
    )
    assert [(one.role, one.content) for one in made.messages] == [
        ("user", "Hello!\nAgain!\nPlease."),
        ("assistant", "A\nB"),
        ("user", "Hello!"),
    ]


@given(st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=12))
def test_roles_take_turns_whatever_is_sent_and_no_word_is_lost(roles: list[str]) -> None:
    sent = [{"role": role, "content": f"word{number}"} for number, role in enumerate(roles)]
    made = parsed(*sent).messages
    assert all(one.role != other.role for one, other in pairwise(made))
    assert "\n".join(one.content for one in made).split("\n") == [one["content"] for one in sent]


def test_a_reply_goes_on_where_the_last_message_is_the_models() -> None:
    assert parsed(HELLO, assistant(text("The sun is"))).spec.continues
    assert not parsed(HELLO).spec.continues
    assert "tool_result" in parse_error(HELLO, assistant(CALL))


@pytest.mark.parametrize(
    ("choice", "expected", "name"),
    [("auto", "auto", ""), ("any", "required", ""), ("none", "none", ""), ("tool", "named", "look")],
)
def test_who_chooses_tools(choice: str, expected: str, name: str) -> None:
    spec = parsed(tools=[LOOK], tool_choice={"type": choice, "name": name}).spec
    assert (spec.tool_choice, spec.tool_name, spec.parallel_calls) == (expected, name, True)
    assert spec.tools == (Tool("look", "Looks.", '{"type":"object","properties":{}}'),)


def test_one_call_at_a_time_may_be_asked_for() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert not parsed(tools=[LOOK], tool_choice=choice).spec.parallel_calls
    assert parsed(tools=[LOOK | {"strict": True}]).spec.tools[0].strict


def test_a_tool_of_anthropics_servers_is_left_out_and_named() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    ask = parsed(tools=[search, LOOK | {"type": "custom"}])
    assert ([tool.name for tool in ask.spec.tools], ask.ignored) == (["look"], ("tools[0]",))
    assert "tool_choice" in parse_error(tools=[search], tool_choice={"type": "any"})


def test_a_tool_may_be_described_at_length() -> None:
    words = "Looks. " * 5_000
    assert parsed(tools=[LOOK | {"description": words}]).spec.tools[0].description == words


def system(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"role": "system", "content": list(blocks), **more}


def change(kind: str, name: str = "look") -> dict[str, Any]:
    return {"type": kind, "tool": {"type": "tool_reference", "name": name}}


def test_tools_that_a_search_of_the_clients_found_are_named_to_the_model() -> None:
    reference = {"type": "tool_reference", "tool_name": "look"}
    ask = parsed(HELLO, assistant(CALL), user(result([reference])), tools=[LOOK | {"defer_loading": True}])
    assert ask.messages[-1] == Message("tool", "Tool available: look", call_id="c_1")
    assert [tool.name for tool in ask.spec.tools] == ["look"]


def test_a_tool_may_be_withdrawn_and_offered_again() -> None:
    removed, added = change("tool_removal"), change("tool_addition")
    without = parsed(HELLO, system(removed, text("Don't look.")), tools=[LOOK, LOOK | {"name": "go"}])
    assert [tool.name for tool in without.spec.tools] == ["go"]
    assert without.messages[-1] == Message("system", "Don't look.")
    again = parsed(HELLO, system(removed), system(added), tools=[LOOK])
    assert [tool.name for tool in again.spec.tools] == ["look"]
    assert again.messages == (Message("user", "Hello!"),)
    assert "is not the name of one of `tools`" in parse_error(
        HELLO, system(change("tool_addition", "go")), tools=[LOOK]
    )
    by_value = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": LOOK}}
    assert "must be of the type tool_reference" in parse_error(HELLO, system(by_value), tools=[LOOK])
    assert "no message to answer" in parse_error(system(removed), tools=[LOOK])


def test_a_system_message_may_hold_for_one_turn() -> None:
    once = system(text("Be brief."), clear_at="next_user_message")
    assert parsed(HELLO, once).messages[-1] == Message("system", "Be brief.")
    assert all(one.role != "system" for one in parsed(HELLO, once, assistant(text("Hi.")), HELLO).messages)


def test_how_much_is_thought() -> None:
    assert parsed(thinking={"type": "disabled"}).spec.reasoning == "off"
    assert parsed(thinking={"type": "adaptive"}).spec == PLAIN
    enabled = parsed(thinking={"type": "enabled", "budget_tokens": 2048}).spec
    assert (enabled.reasoning, enabled.template) == ("auto", {"enable_thinking": True})
    assert parsed(output_config={"effort": "high"}).spec.reasoning == "high"


def test_a_schema_is_kept_to() -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
    assert parsed(output_config={"format": form}).spec.format == JsonSchema(
        '{"type":"object","properties":{}}'
    )
    forced = parsed(output_config={"format": form}, tools=[LOOK], tool_choice={"type": "any"})
    assert forced.spec.format is None


def test_how_a_reply_is_sampled() -> None:
    params = parsed(max_tokens=7, temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["END"]).params
    assert params == Params(
        max_new_tokens=7, do_sample=True, temperature=0.5, top_p=0.9, top_k=5, stop=("END",)
    )


def test_a_length_beyond_the_servers_is_the_servers() -> None:
    """`max_tokens` is an upper bound, and agents send what their own models can write."""
    assert parsed(max_tokens=64_000).params.max_new_tokens == LIMITS.max_new_tokens


def test_what_changes_nothing_passes() -> None:
    neutral = {"service_tier": "auto", "cache_control": {"type": "ephemeral"}}
    keeps = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    assert parsed(**neutral, mcp_servers=[], context_management=keeps) == parsed()
    assert "context_management" in parse_error(
        context_management={"edits": [{"type": "clear_tool_uses_20250919"}]}
    )


def test_metadata_names_the_applications_user() -> None:
    assert parsed(metadata={"user_id": "u"}).user == "u"
    assert parsed().user == parsed(metadata={}).user == ""


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b'{"messages": 1, "model": "m", "max_tokens": 1}']
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(Problem):
        parse_message_request(body)


def test_a_count_asks_for_the_same_prompt_without_a_length() -> None:
    body = json.dumps({"model": "m", "messages": [HELLO], "tools": [LOOK], "system": "Be brief."}).encode()
    counted, answered = (
        count_turn_request(parse_count_request(body), LIMITS),
        parsed(tools=[LOOK], system="Be brief."),
    )
    assert (counted.messages, counted.spec) == (answered.messages, answered.spec)


def test_bytes_that_are_no_text_are_refused_wherever_they_stand() -> None:
    """The decoder does not look into what is kept as it was written."""
    called = json.dumps({"model": "m", "max_tokens": 1, "messages": [assistant(CALL)]}).encode()
    with pytest.raises(Problem, match="not a JSON object"):
        parse_message_request(called.replace(b'"at"', b'"\xff"'))


def test_as_many_blocks_as_a_body_may_have_are_joined_at_once() -> None:
    """A text that grew block by block would be copied 9,900 times, and the event loop would stand still for that long."""
    blocks = [text("a" * 370)] * 9_900
    body = json.dumps({"model": "m", "max_tokens": 8, "messages": [user(*blocks)]}).encode()
    started = time.process_time()
    request = parse_message_request(body)
    read = time.process_time()
    with pytest.raises(Problem, match="too long"):
        message_turn_request(request, LIMITS)
    assert time.process_time() - read < 20 * (read - started)


def test_a_text_that_is_too_long_is_refused() -> None:
    """`tests/transcripts/messages/refusals` has all other refusals."""
    why = "The message is too long: it has 101 characters, and 100 are allowed."
    assert parse_error({"role": "user", "content": "x" * 101}) == why


def test_an_image_in_a_result_is_refused() -> None:
    image = {"type": "image", "source": {"type": "base64"}}
    assert parse_error(HELLO, assistant(CALL), user(result([image]))) == "This model does not take images."
