"""Bodies of requests, and what becomes of them."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from connections.api.chat_requests import chat_turn_request, parse_chat_request
from connections.api.requests import Problem
from sessions.running.ephemeral import EphemeralRequest
from tests.connections.factory import limits

LIMITS = limits(max_content_chars=20, max_new_tokens=100)
A_SENTENCE = re.compile(r"[`A-Z][^\"'\n]*\.")
"""No quotes of Python's, no types of a library's."""
USER = {"role": "user", "content": "Hello!"}


def parsed(**fields: Any) -> EphemeralRequest:
    """What a chat's body asks."""
    body = msgspec.json.encode({"model": "m", "messages": [USER]} | fields)
    return chat_turn_request(parse_chat_request(body), LIMITS)


def parse_error(**fields: Any) -> tuple[str | None, str]:
    """The field's name and the code."""
    with pytest.raises(Problem) as problem:
        parsed(**fields)
    assert problem.value.status == 400
    assert A_SENTENCE.fullmatch(str(problem.value)), str(problem.value)
    return problem.value.param, problem.value.code
