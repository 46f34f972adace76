"""Streams of a socket, and what may be gone on from."""

from __future__ import annotations

import pytest

from connections.api.requests import Problem
from connections.api.responses.endpoint import (
    MAX_NEWEST_BYTES,
    MAX_STREAMS,
    MAX_UNSTORED,
    MAX_UNSTORED_BYTES,
    ActiveStreams,
    UnstoredResponses,
)
from engine.messages import Message
from sessions.errors import Overloaded

MESSAGES = (Message("user", "Hello!"),)


def test_so_many_lanes_are_written_in_at_a_time() -> None:
    streams = ActiveStreams()
    for number in range(MAX_STREAMS):
        streams.take(str(number))
    with pytest.raises(Overloaded):
        streams.take("one more")
    streams.release("0")
    streams.take("one more")


def test_a_stop_before_a_response_began_ends_it_when_it_does() -> None:
    streams, stopped = ActiveStreams(), list[str]()
    stream = streams.take(None)
    streams.stop(None, None)
    stream.write("resp_1", lambda: stopped.append("resp_1"))
    assert stopped == ["resp_1"]


def test_a_response_is_stopped_by_its_name_in_whichever_lane() -> None:
    streams, stopped = ActiveStreams(), list[str]()
    for name in ("a", "b"):
        streams.take(name).write(f"resp_{name}", lambda name=name: stopped.append(name))  # type: ignore[misc]
    streams.stop("resp_b", None)
    assert stopped == ["b"]
    with pytest.raises(Problem):
        streams.stop("resp_c", "a")


def test_the_oldest_responses_are_forgotten_where_many_are_kept() -> None:
    kept = UnstoredResponses()
    for number in range(MAX_UNSTORED + 1):
        kept.put(str(number), MESSAGES)
    assert kept.get("0") is None
    assert kept.get("1") == MESSAGES


def test_long_conversations_are_kept_up_to_a_bound() -> None:
    kept = UnstoredResponses()
    long = (Message("user", "x" * (MAX_UNSTORED_BYTES // 2)),)
    kept.put("a", long)
    kept.put("b", long)
    assert (kept.get("a"), kept.get("b")) == (None, long)
    longer = (Message("user", "x" * MAX_UNSTORED_BYTES),)
    kept.put("c", longer)  # the newest one may be longer than all may be together
    assert (kept.get("b"), kept.get("c")) == (None, longer)
    kept.put("d", (Message("user", "x" * MAX_NEWEST_BYTES),))
    assert (kept.get("c"), kept.get("d")) == (None, None)
