"""A stream of Anthropic's events puts together the same message that comes whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connections.api.anthropic.endpoint import MessagesEncoder, encode_message
from connections.api.requests import Problem
from engine.messages import ToolCall
from sessions.events import Failure, Reason, Usage
from sessions.generation import TokenLatency
from sessions.observer import Observer
from sessions.running.ephemeral import EphemeralReply, Piece, ReasoningPiece, TextPiece
from sessions.turn.turn_state import EngineCount, TurnIds, TurnState
from tests.connections.factory import done

PIECES = st.one_of(
    st.builds(TextPiece, st.text(max_size=3)),
    st.builds(ReasoningPiece, st.text(min_size=1, max_size=3)),
    st.builds(ToolCall, st.just("c_1"), st.just("look"), st.sampled_from(["{}", '{"at":1}'])),
)


def ended(
    reason: Reason = Reason.STOP, *, stop: str | None = None, error: Failure | None = None
) -> EphemeralReply:
    turn = TurnState(TurnIds(conversation_id="", turn_id="turn_1", reply_id="msg_1"))
    turn.count = EngineCount(prompt_tokens=9, cached_tokens=4, generated_tokens=7)
    reply = EphemeralReply(turn, TokenLatency(Observer(), turn))
    reply.model = "m"
    usage = Usage(
        prompt_tokens=9,
        cached_tokens=4,
        generated_tokens=7,
        sent_tokens=7,
        wasted_tokens=0,
        reasoning_tokens=2,
    )
    reply.finish(done("turn_1", reason=reason, usage=usage, error=error), stop=stop)
    return reply


def events(
    reply: EphemeralReply, pieces: list[Piece], *, shows_reasoning: bool = True
) -> list[dict[str, Any]]:
    encoder = MessagesEncoder("turn_1", shows_reasoning=shows_reasoning)
    body = encoder.begin(reply) if pieces else b""
    body += b"".join(map(encoder.piece, pieces)) + encoder.end(reply)
    found = []
    for event in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\ndata: ", 1)
        found.append(json.loads(data))
        assert name == f"event: {found[-1]['type']}"
    return found


def put_together(received: list[dict[str, Any]]) -> dict[str, Any]:
    """As a client does; every block is open while it grows, and they are numbered from 0 on."""
    message: dict[str, Any] = {}
    open_block: int | None = None
    for event in received:
        match event["type"]:
            case "message_start":
                assert not message
                message = event["message"]
            case "content_block_start":
                assert open_block is None
                open_block = event["index"]
                assert open_block == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                assert event["index"] == open_block
                _grow(message["content"][-1], event["delta"])
            case "content_block_stop":
                assert event["index"] == open_block
                open_block = None
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    assert open_block is None
    return message


def _grow(block: dict[str, Any], delta: dict[str, Any]) -> None:
    match delta.pop("type"):
        case "input_json_delta":
            block["input"] = json.loads(delta["partial_json"])
        case _:
            for name, more in delta.items():
                block[name] += more


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_a_stream_says_what_the_whole_says(pieces: list[Piece], shows_reasoning: bool) -> None:  # noqa: FBT001 - drawn
    reply = ended()
    received = events(reply, pieces, shows_reasoning=shows_reasoning)
    assert received[0]["type"] == "message_start"
    assert [one["type"] for one in received[-2:]] == ["message_delta", "message_stop"]
    assert put_together(received) == json.loads(
        encode_message(reply, pieces, shows_reasoning=shows_reasoning)
    )


def test_a_filtered_reply_is_a_refusal() -> None:
    """`tests/transcripts/messages` has all other ends."""
    message = json.loads(encode_message(ended(Reason.FILTERED), [TextPiece("Hi")]))
    assert (message["stop_reason"], message["stop_sequence"]) == ("refusal", None)


def test_kept_tokens_of_the_prompt_are_told_apart() -> None:
    usage = put_together(events(ended(), [TextPiece("Hi")]))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (5, 4, 7)
    assert usage["output_tokens_details"] == {"thinking_tokens": 2}


def test_thoughts_that_nobody_wants_leave_their_signature() -> None:
    (block, _) = put_together(
        events(ended(), [ReasoningPiece("Hm."), TextPiece("A.")], shows_reasoning=False)
    )["content"]
    assert block["thinking"] == ""
    assert block["signature"].startswith("sha256:")


def test_what_went_wrong_ends_a_stream_as_an_error() -> None:
    reply = ended(Reason.INTERRUPTED, error=Failure(code="overloaded", message="Too much to do."))
    last = events(reply, [TextPiece("Hi")])[-1]
    assert last["error"] == {"type": "overloaded_error", "message": "Too much to do."}
    with pytest.raises(Problem, match="Too much"):
        encode_message(reply, [])
