"""What a socket knows of its responses: the one that is being written, and the one that may be continued."""

from __future__ import annotations

from connections.api.responses.endpoint import MAX_UNSTORED_BYTES, ActiveResponse, UnstoredResponse
from engine.messages import Message

MESSAGES = (Message("user", "Hello!"),)


def test_a_stop_before_a_response_began_ends_it_when_it_does() -> None:
    active, stopped = ActiveResponse(), list[str]()
    active.end()
    active.begin("resp_1", lambda: stopped.append("resp_1"))
    assert stopped == ["resp_1"]


def test_the_newest_response_is_kept_unless_it_is_too_long() -> None:
    unstored = UnstoredResponse()
    for name in ("a", "b"):
        unstored.put(name, MESSAGES)
    assert (unstored.get("a"), unstored.get("b"), unstored.get(None)) == (None, MESSAGES, None)
    unstored.put("c", (Message("user", "x" * MAX_UNSTORED_BYTES),))
    assert (unstored.get("b"), unstored.get("c")) == (None, None)
