"""What a body of the completions' endpoint asks, and the names under which it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import Message, ReplySpec
from tests.connections.openai.request_parsing import completions, parse_error


def test_a_prompt_is_read_as_it_is() -> None:
    (request,) = completions(prompt="Once upon ", max_tokens=5)
    assert (request.messages, request.spec) == ((Message("user", "Once upon "),), ReplySpec(raw=True))
    assert (request.params.max_new_tokens, request.params.top_logprobs, request.replies) == (5, None, 1)


def test_several_prompts_are_as_many_asks() -> None:
    requests = completions(prompt=["One", "Two"], n=2, logprobs=3)
    assert [(request.messages[0].content, request.replies) for request in requests] == [
        ("One", 2),
        ("Two", 2),
    ]
    assert [request.params.top_logprobs for request in requests] == [3, 3]


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
