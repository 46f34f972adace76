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


@pytest.mark.parametrize(
    ("variables", "param"),
    [
        ({"a": "x" * (MAX_VALUE_CHARS + 1)}, "chat_template_kwargs.a"),
        ({f"a{n}": 1 for n in range(MAX_VARIABLES + 1)}, "chat_template_kwargs"),
    ],
)
def test_too_many_variables_are_refused_by_name(variables: dict[str, Any], param: str) -> None:
    """`tests/transcripts/chat-completions/refusals` has all other refusals."""
    assert parse_error(chat_template_kwargs=variables) == (param, "invalid_value")
