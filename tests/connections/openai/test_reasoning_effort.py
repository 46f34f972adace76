"""How much is thought, by whichever of the fields that clients have for it; and what goes on where it ended."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from connections.api.chat_requests import (
    MAX_VALUE_CHARS,
    MAX_VARIABLES,
    field_names,
    parse_chat_request,
    shows_reasoning,
)
from engine.messages import Message
from tests.connections.openai.request_parsing import USER, parse_error, parsed

SO = {"role": "assistant", "content": "So"}


@pytest.mark.parametrize(
    ("fields", "reasoning", "template"),
    [
        ({"reasoning_effort": "none"}, "off", {}),
        ({"reasoning_effort": "high"}, "high", {}),
        ({"reasoning": {"effort": "low"}}, "low", {}),
        ({"reasoning": {"enabled": False}}, "off", {}),
        ({"reasoning": {"enabled": True}}, "auto", {"enable_thinking": True}),
        ({"think": False}, "off", {}),
        ({"think": True}, "auto", {"enable_thinking": True}),
        ({"think": "medium"}, "medium", {}),
        ({"thinking": {"type": "disabled"}}, "off", {}),
        ({"thinking": {"type": "enabled"}}, "auto", {"enable_thinking": True}),
        ({"enable_thinking": False}, "off", {}),
        ({"enable_thinking": True}, "auto", {"enable_thinking": True}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "auto", {"enable_thinking": False}),
        ({"chat_template_kwargs": {"a": 1, "b": 0.5, "c": None, "d": "x"}}, "auto", {"a": 1, "b": 0.5, "c": None, "d": "x"}),
    ],
)  # fmt: skip
def test_every_switch_means_the_same(
    fields: dict[str, Any], reasoning: str, template: dict[str, Any]
) -> None:
    spec = parsed(**fields).spec
    assert (spec.reasoning, spec.template) == (reasoning, template)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"reasoning_effort": "very high!"}, "reasoning_effort", "invalid_value"),
        ({"reasoning_effort": 5}, "reasoning_effort", "invalid_type"),
        ({"think": "HIGH"}, "think", "invalid_value"),
        ({"thinking": {"type": "maybe"}}, "thinking", "invalid_value"),
        ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs", "invalid_value"),
        ({"chat_template_kwargs": {"a b": "x"}}, "chat_template_kwargs", "invalid_value"),
        ({"chat_template_kwargs": {"a": "x" * (MAX_VALUE_CHARS + 1)}}, "chat_template_kwargs.a", "invalid_value"),
        ({"chat_template_kwargs": {f"a{n}": 1 for n in range(MAX_VARIABLES + 1)}}, "chat_template_kwargs", "invalid_value"),
        ({"chat_template_kwargs": {"a": []}}, "chat_template_kwargs[...]", "invalid_type"),
        ({"continue_final_message": True}, "continue_final_message", "invalid_value"),
        ({"add_generation_prompt": False}, "add_generation_prompt", "invalid_value"),
        ({"continue_final_message": True, "add_generation_prompt": False}, "continue_final_message", "invalid_value"),
    ],
)  # fmt: skip
def test_what_can_not_be_had_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    assert parse_error(**fields) == (param, code)


def test_the_last_message_goes_on() -> None:
    ask = parsed(messages=[USER, SO], continue_final_message=True, add_generation_prompt=False)
    assert (ask.spec.continues, ask.messages[-1]) == (True, Message("assistant", "So"))


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
    body = msgspec.json.encode({"model": "m", "messages": [USER], **fields})
    assert shows_reasoning(parse_chat_request(body)) is shown
    assert field_names(parse_chat_request(body))["reasoning"] == "reasoning_effort"
