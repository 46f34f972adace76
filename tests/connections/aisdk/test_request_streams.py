"""The requests of one socket: each is told on its own, in frames that the AI SDK's transport takes."""

from __future__ import annotations

import json

import pytest

from connections.api.ai_sdk.endpoint import MAX_STREAMS, SocketStreams
from connections.protocol.errors import BadParams
from connections.protocol.frames import Error, Frame
from sessions.errors import Overloaded
from tests.connections.factory import accepted, delta, done, page


def sent_frames(streams: SocketStreams, *frames: Frame) -> list[dict[str, object]]:
    """What a client is sent."""
    return [json.loads(line) for frame in frames for line in streams.encode(frame).splitlines()]


def test_two_requests_are_told_of_the_same_turn_each_in_its_own_order() -> None:
    streams = SocketStreams()
    streams.open("r1", "c", is_resumed=False).client_msg_id = "m1"
    streams.open("r2", "other", is_resumed=False).client_msg_id = "m1"
    frames = sent_frames(streams, accepted(), delta("Hello."), done(chars=6))
    assert {frame["requestId"] for frame in frames} == {"r1"}
    assert [frame["type"] for frame in frames[:2]] == ["start", "chunk"]
    assert [frame["sequence"] for frame in frames[1:-1]] == list(range(len(frames) - 2))
    assert frames[-1] == {"type": "end", "requestId": "r1"}
    streams.open("r1", "c", is_resumed=True)  # its name is free again
    assert sent_frames(streams, page(ref="r1")) == [{"type": "no-active", "requestId": "r1"}]


def test_a_socket_has_a_bound_of_requests_and_no_two_of_one_name() -> None:
    streams = SocketStreams()
    for number in range(MAX_STREAMS):
        streams.open(str(number), "c", is_resumed=False)
    with pytest.raises(BadParams, match="requestId"):
        streams.open("0", "c", is_resumed=False)
    with pytest.raises(Overloaded):
        streams.open("one more", "c", is_resumed=False)
    streams.drop("0")
    streams.open("one more", "c", is_resumed=False)


def test_a_refusal_is_an_error_of_its_request_alone() -> None:
    streams = SocketStreams()
    streams.open("r1", "c", is_resumed=False).client_msg_id = "m1"
    streams.open("r2", "c", is_resumed=True)
    sent_frames(streams, accepted())
    busy = Error(ref="r1", code="busy", message="Not now.")
    frames = sent_frames(streams, busy, Error(ref="r2", code="not_found", message="No such."), busy)
    assert [frame["type"] for frame in frames] == ["chunk", "end", "no-active", "error"]
    assert frames[-1] == {"type": "error", "requestId": "r1", "errorText": "Not now."}
