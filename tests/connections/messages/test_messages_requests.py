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
    message_turn_request,
    parse_message_request,
)
from connections.api.requests import Problem
from sessions.running.ephemeral import EphemeralRequest
from tests.connections.factory import limits

LIMITS = limits()
HELLO = {"role": "user", "content": "Hello!"}
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


@given(st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=12))
def test_roles_take_turns_whatever_is_sent_and_no_word_is_lost(roles: list[str]) -> None:
    sent = [{"role": role, "content": f"word{number}"} for number, role in enumerate(roles)]
    made = parsed(*sent).messages
    assert all(one.role != other.role for one, other in pairwise(made))
    assert "\n".join(one.content for one in made).split("\n") == [one["content"] for one in sent]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b'{"messages": 1, "model": "m", "max_tokens": 1}']
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(Problem):
        parse_message_request(body)


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
