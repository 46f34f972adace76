"""What a body of the completions' door asks, and the names under which it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import Message
from engine.reply_spec import ReplySpec
from tests.connections.openai.request_parsing import completions, parse_error


def test_a_prompt_is_read_as_it_is() -> None:
    (ask,) = completions(prompt="Once upon ", max_tokens=5)
    assert (ask.messages, ask.spec) == ((Message("user", "Once upon "),), ReplySpec(raw=True))
    assert (ask.params.max_new_tokens, ask.params.top_logprobs, ask.replies) == (5, None, 1)


def test_several_prompts_are_as_many_asks() -> None:
    asks = completions(prompt=["One", "Two"], n=2, logprobs=3)
    assert [(ask.messages[0].content, ask.replies) for ask in asks] == [("One", 2), ("Two", 2)]
    assert [ask.params.top_logprobs for ask in asks] == [3, 3]


def test_a_prompt_may_be_longer_than_a_message() -> None:
    """It holds a whole talk, mostly; its window bounds it."""
    assert completions(prompt="x" * 1000)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": ["x", ""]}, "prompt", "invalid_value"),
        ({"prompt": ["x"] * 5}, "prompt", "invalid_value"),
        ({"prompt": [5, 6]}, "prompt", "unsupported_parameter"),
        ({"prompt": [[5, 6]]}, "prompt", "unsupported_parameter"),
        ({"prompt": None}, "prompt", "invalid_type"),
        ({"prompt": "x", "suffix": "The end."}, "suffix", "unsupported_parameter"),
        ({"prompt": "x", "echo": True}, "echo", "unsupported_parameter"),
        ({"prompt": "x", "best_of": 2}, "best_of", "unsupported_parameter"),
        ({"prompt": "x", "n": 5}, "n", "invalid_value"),
        ({"prompt": ["x", "y"], "n": 3}, "n", "invalid_value"),
        ({"prompt": ["x", "y", "z"], "n": 2}, "n", "invalid_value"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "invalid_value"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "invalid_type"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "invalid_value"),
    ],
)
def test_a_refusal_names_its_field(fields: dict[str, Any], param: str, code: str) -> None:
    assert parse_error(**fields) == (param, code)
