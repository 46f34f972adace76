"""The demo model's chat template: roles, tools in Hermes' form, thoughts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from app.settings import DEMO_MODEL

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"type": "string"}},
            "required": ["city"],
        },
    },
}
LISTED = '<tools>\n{"name": "get_weather", "parameters": {"city": "string"}}\n</tools>'
QUESTION = {"role": "user", "content": "Weather in Oslo?"}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(DEMO_MODEL)


def rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def spelled(name: str, **arguments: Any) -> str:
    """A call as the model writes it."""
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def test_without_tools_and_thoughts_a_prompt_is_roles_and_contents_alone(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": " Hello! "},
        {"role": "assistant", "content": "Hel\n"},
        {"role": "user", "content": "{x}"},
    ]
    prompt = (
        "<|begin|><|system|>Be kind.<|end|><|user|> Hello! <|end|><|assistant|>Hel\n<|end|><|user|>{x}<|end|>"
    )
    assert rendered(tokenizer, messages) == prompt
    assert rendered(tokenizer, messages, add_generation_prompt=True, tools=[]) == prompt + "<|assistant|>"


def test_tools_are_listed_short_in_the_system_prompt(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = rendered(tokenizer, [QUESTION], tools=[WEATHER])
    assert prompt == f"<|begin|><|system|>{LISTED}<|end|><|user|>Weather in Oslo?<|end|>"


def test_tools_follow_the_system_prompt_that_is_there(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = rendered(tokenizer, [{"role": "system", "content": "Be kind."}, QUESTION], tools=[WEATHER])
    assert f"<|system|>Be kind.\n\n{LISTED}<|end|><|user|>" in prompt


def test_a_function_is_a_tool(tokenizer: PreTrainedTokenizerBase) -> None:
    def roll_dice(sides: int, times: int = 1) -> int:
        """
        Rolls.

        Args:
            sides: how many
            times: how often
        """
        return sides * times

    listed = '{"name": "roll_dice", "parameters": {"sides": "integer"}}'
    assert listed in rendered(tokenizer, [QUESTION], tools=[roll_dice])


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        None,
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
        {"properties": {"a": {"type": ["string", "null"]}, "b": True}, "required": ["a", "b", "c"]},
    ],
)
def test_any_schema_can_be_listed(tokenizer: PreTrainedTokenizerBase, parameters: Any) -> None:
    tool = {"type": "function", "function": {"name": 'odd"name', "parameters": parameters}}
    listed = rendered(tokenizer, [QUESTION], tools=[tool]).split("<tools>\n")[1].split("\n</tools>")[0]
    assert json.loads(listed)["name"] == 'odd"name'


def test_calls_and_results_are_in_hermes_form(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [
        QUESTION,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("get_weather", city=city) for city in ("Oslo", "São Paulo")],
        },
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "sun"},
    ]
    prompt = rendered(tokenizer, messages, tools=[WEATHER], add_generation_prompt=True)
    calls = f"{spelled('get_weather', city='Oslo')}\n{spelled('get_weather', city='São Paulo')}"
    results = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response>"
    assert prompt.endswith(f"<|assistant|>{calls}<|end|><|user|>{results}<|end|><|assistant|>")


def test_arguments_may_be_text(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call("get_time")]}]
    messages[1]["tool_calls"][0]["function"]["arguments"] = "{}"  # type: ignore[index]
    assert spelled("get_time") in rendered(tokenizer, messages)


def test_a_reply_that_was_thought_about_stands_in_the_prompt_as_it_was_written(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    thought = {"role": "assistant", "content": "Hi!", "reasoning_content": "This is small talk."}
    prompt = rendered(tokenizer, [QUESTION, thought])
    assert prompt.endswith("<|assistant|><think>\nThis is small talk.\n</think>\n\nHi!<|end|>")


def test_thinking_can_be_begun_and_forbidden(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = rendered(tokenizer, [QUESTION], add_generation_prompt=True)
    for enable, given in ((True, "<think>\n"), (False, "<think>\n\n</think>\n\n")):
        prompt = rendered(tokenizer, [QUESTION], add_generation_prompt=True, enable_thinking=enable)
        assert prompt == plain + given


def test_an_unknown_role_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(Exception, match="the roles are system, user, assistant and tool"):
        rendered(tokenizer, [{"role": "function", "content": "x"}])


def test_transformers_takes_replies_apart(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = rendered(tokenizer, [QUESTION], add_generation_prompt=True, enable_thinking=True)
    written = f"I need a tool.\n</think>\n\n{spelled('get_weather', city='Oslo')}<|end|>"
    parsed: Any = tokenizer.parse_response(written, prefix=prompt)
    assert parsed["reasoning_content"] == "I need a tool."
    assert parsed["tool_calls"] == [call("get_weather", city="Oslo")]
