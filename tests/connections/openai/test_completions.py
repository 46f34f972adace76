"""What a body of the completions' endpoint asks, and the names under which it is refused."""

from __future__ import annotations

from engine.messages import Message, ReplySpec
from tests.connections.openai.request_parsing import completions


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
