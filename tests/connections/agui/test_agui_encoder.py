"""A run's events are in the order that the protocol asks for, whatever the model writes."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connections.api.agui.endpoint import AguiEncoder
from connections.api.agui.requests import RunInput
from engine.messages import ToolCall
from sessions.events import Reason
from sessions.running.ephemeral import Piece, ReasoningPiece, TextPiece
from tests.connections.messages.test_messages_encoder import ended

CALLS = st.integers(1, 10**6).map(lambda number: ToolCall(f"c_{number}", "look", '{"at":1}'))
PIECES = st.lists(
    st.one_of(
        st.builds(TextPiece, st.text(max_size=3)),
        st.builds(ReasoningPiece, st.text(min_size=1, max_size=3)),
        CALLS,
    ),
    max_size=12,
)


def events(
    pieces: list[Piece], reason: Reason = Reason.STOP, version: str | None = "1.0"
) -> list[dict[str, Any]]:
    encoder = AguiEncoder(
        "turn_1", RunInput(thread_id="t", run_id="r", messages=[], protocol_version=version)
    )
    body = encoder.open() + b"".join(map(encoder.piece, pieces)) + encoder.ping() + encoder.end(ended(reason))
    blocks = body.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(block.removeprefix("data: ")) for block in blocks if block != ":"]


def follow(received: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What a client has of a run: kinds and texts of its messages. Asserts that at most one is open at a time."""
    found: list[tuple[str, str]] = []
    names: set[str] = set()
    open_one = ""
    for event in received:
        kind, name = event["type"], event.get("messageId") or event.get("toolCallId") or ""
        if kind in ("TEXT_MESSAGE_START", "REASONING_START", "TOOL_CALL_START"):
            assert not open_one
            assert name not in names
            names.add(name)
            open_one = name
            found.append((kind, ""))
        elif kind in ("TEXT_MESSAGE_END", "REASONING_END", "TOOL_CALL_END"):
            assert open_one == name
            open_one = ""
        elif "delta" in event:
            assert open_one == name
            found[-1] = (found[-1][0], found[-1][1] + event["delta"])
    assert not open_one
    return found


def pieced(pieces: list[Piece]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for piece in pieces:
        match piece:
            case ToolCall(_, _, arguments):
                found.append(("TOOL_CALL_START", arguments))
            case TextPiece(text) | ReasoningPiece(text) if text:
                kind = "TEXT_MESSAGE_START" if isinstance(piece, TextPiece) else "REASONING_START"
                if found and found[-1][0] == kind:
                    found[-1] = (kind, found[-1][1] + text)
                else:
                    found.append((kind, text))
    return found


@given(PIECES.filter(lambda pieces: len({str(one) for one in pieces}) == len(pieces)))
def test_a_client_puts_together_what_was_written(pieces: list[Piece]) -> None:
    received = events(pieces)
    assert received[0] == {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "protocolVersion": "1.0"}
    assert follow(received) == pieced(pieces)
    last = received[-1]
    assert (last["type"], last["metadata"]) == ("RUN_FINISHED", {"finishReason": "stop"})
    calls = [piece.call_id for piece in pieces if isinstance(piece, ToolCall)]
    assert last["outcome"].get("pendingToolCallIds", []) == calls
    assert last["usage"][0]["totalTokens"] == 16


def test_a_reply_that_was_cut_short_is_not_passed_off_as_whole() -> None:
    last = events([TextPiece("Hi")], Reason.LENGTH)[-1]
    assert (last["outcome"], last["metadata"]) == ({"type": "cancelled"}, {"finishReason": "length"})


def test_a_client_before_1_0_gets_no_field_that_it_would_refuse() -> None:
    *_, last = events([ToolCall("c_1", "look", "{}")], version=None)
    assert last["outcome"] == {"type": "success"}
    *_, last = events([TextPiece("So")], Reason.LENGTH, version=None)
    assert "outcome" not in last
    assert last["metadata"] == {"finishReason": "length"}
