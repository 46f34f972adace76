"""What starts a run asks of a turn, and the sentences by which it is refused."""

from __future__ import annotations

import json

import pytest

from connections.api.agui.requests import ask_of, run_input
from connections.api.requests import Problem
from tests.connections.factory import limits

HELLO = {"id": "1", "role": "user", "content": "Hello!"}
HOLLOW = b'{"threadId":"t","runId":"r","messages":[{"role":"user","content":"Hello"}]}'


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", HOLLOW.replace(b"Hello", b"\xff")])
def test_what_is_no_run_is_refused(body: bytes) -> None:
    with pytest.raises(Problem):
        run_input(body)


def test_what_thousands_of_messages_said_in_a_row_is_joined() -> None:
    one = {"id": "a", "role": "assistant", "content": "x" * 380}
    body = {"threadId": "t", "runId": "r", "messages": [one] * 9_000 + [HELLO]}
    request = run_input(json.dumps(body).encode())
    joined, hello = ask_of(request, limits(max_content_chars=10_000_000)).messages
    assert (len(joined.content), hello.content) == (9_000 * 381 - 1, "Hello!")
