import json
import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from demo_model import dialogues, toolbox
from demo_model.holdout import Split
from demo_model.thinking import BEGUN, EMPTY
from demo_model.tokenizer import train_tokenizer
from demo_model.tool_turns import toolset

WEATHER = toolbox.Tool("get_weather", (("city", "string"),))
QUESTION = {"role": "user", "content": "Weather in Oslo?"}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return train_tokenizer(["Hello, what is the weather?"] * 10, words=20)


def rendered(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


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


def test_tools_are_listed_in_the_system_prompt_as_training_lists_them(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    rng = random.Random(4)
    for _ in range(20):
        tools = toolset(rng, Split.TRAIN)
        prompt = rendered(tokenizer, [QUESTION], tools=[tool.schema for tool in tools] or None)
        system = f"<|system|>{toolbox.listed(tools)}<|end|>" if tools else ""
        assert prompt == f"<|begin|>{system}<|user|>Weather in Oslo?<|end|>"


def test_tools_follow_the_system_prompt_that_is_there(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = rendered(
        tokenizer, [{"role": "system", "content": "Be kind."}, QUESTION], tools=[WEATHER.schema]
    )
    assert f"<|system|>Be kind.\n\n{toolbox.listed([WEATHER])}<|end|><|user|>" in prompt


def test_a_function_is_a_tool(tokenizer: PreTrainedTokenizerBase) -> None:
    def roll_dice(sides: int, times: int = 1) -> int:
        """
        Rolls.

        Args:
            sides: how many
            times: how often
        """
        return sides * times

    dice = toolbox.Tool("roll_dice", (("sides", "integer"),))
    assert toolbox.listed([dice]) in rendered(tokenizer, [QUESTION], tools=[roll_dice])


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


def test_calls_and_results_are_spelled_as_training_spells_them(tokenizer: PreTrainedTokenizerBase) -> None:
    cities = ("Oslo", "São Paulo")
    messages = [
        QUESTION,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [call("get_weather", city=city) for city in cities],
        },
        {"role": "tool", "content": "rain"},
        {"role": "tool", "content": "sun"},
    ]
    expected = toolbox.called([toolbox.call(WEATHER, city) for city in cities], ["rain", "sun"])
    prompt = rendered(tokenizer, messages, tools=[WEATHER.schema], add_generation_prompt=True)
    assert prompt.endswith(
        f"<|assistant|>{expected.calls}<|end|><|user|>{expected.results}<|end|><|assistant|>"
    )


def test_arguments_may_be_text(tokenizer: PreTrainedTokenizerBase) -> None:
    messages = [QUESTION, {"role": "assistant", "content": None, "tool_calls": [call("get_time")]}]
    messages[1]["tool_calls"][0]["function"]["arguments"] = "{}"  # type: ignore[index]
    assert toolbox.call(toolbox.Tool("get_time")) in rendered(tokenizer, messages)


def test_a_reply_that_was_thought_about_stands_in_the_prompt_as_it_was_written(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    thought = {"role": "assistant", "content": "Hi!", "reasoning_content": "This is small talk."}
    prompt = rendered(tokenizer, [QUESTION, thought])
    assert prompt.endswith("<|assistant|><think>\nThis is small talk.\n</think>\n\nHi!<|end|>")


def test_thinking_can_be_begun_and_forbidden(tokenizer: PreTrainedTokenizerBase) -> None:
    plain = rendered(tokenizer, [QUESTION], add_generation_prompt=True)
    for enable, given in ((True, BEGUN), (False, EMPTY)):
        prompt = rendered(tokenizer, [QUESTION], add_generation_prompt=True, enable_thinking=enable)
        assert prompt == plain + given


def test_an_unknown_role_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(Exception, match="the roles are system, user, assistant and tool"):
        rendered(tokenizer, [{"role": "function", "content": "x"}])


def test_transformers_takes_replies_apart(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = rendered(tokenizer, [QUESTION], add_generation_prompt=True, enable_thinking=True)
    written = f"I need a tool.\n</think>\n\n{toolbox.call(WEATHER, 'Oslo')}<|end|>"
    parsed: Any = tokenizer.parse_response(written, prefix=prompt)
    assert parsed["reasoning_content"] == "I need a tool."
    assert parsed["tool_calls"] == [call("get_weather", city="Oslo")]


@pytest.mark.parametrize("seed", range(40))
def test_dialogues_are_what_the_template_renders(tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
    dialogue = dialogues.write(random.Random(seed), most_characters=500, longest_count=10)
    messages = [{"role": message.role, "content": message.content} for message in dialogue.messages]
    assert rendered(tokenizer, messages) == "<|begin|>" + "".join(
        f"<|{message['role']}|>{message['content']}<|end|>" for message in messages
    )
