"""What happens in a conversation, as chunks: however it is cut, a reader of the AI SDK takes it, and has the whole text."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connections.api.ai_sdk.encoder import CallsAnswered, Chunk, ChunkEncoder, StreamEnd, encode
from connections.protocol.frames import Error, Frame
from sessions.conversation.history_page import HistoryPage, ShownMessage
from sessions.events import (
    Accepted,
    CallState,
    Delta,
    Done,
    Gap,
    Needs,
    Reason,
    Reasoning,
    ShownCall,
    Timing,
    ToolCall,
    ToolState,
    Usage,
    Where,
)
from tests.connections.aisdk.stream_checker import check

TEXT = "Grüße, 🙂 and good day."
THOUGHT = "Hm… 🤔 so."
PIECES = st.lists(st.integers(0, len(TEXT)), max_size=6)


def accepted(turn_id: str = "turn_1", **delta: Any) -> Accepted:
    return Accepted(
        conversation_id="c", client_msg_id="m1", turn_id=turn_id, message_id="msg", epoch="e", seq=1, **delta
    )


def piece(kind: type[Delta | Reasoning], text: str, start: int, end: int, turn_id: str = "turn_1") -> Frame:
    return kind(
        conversation_id="c", turn_id=turn_id, seq=2, first_seq=2, off=start, text=text[start:end], tokens=1
    )


def call(
    call_id: str, off: int, *, where: Where = "server", needs: Needs = "none", turn_id: str = "turn_1"
) -> ToolCall:
    sha = hashlib.sha256(b"{}").hexdigest()
    return ToolCall(
        conversation_id="c",
        turn_id=turn_id,
        seq=3,
        call_id=call_id,
        index=0,
        name="f",
        args="{}",
        args_sha256=sha,
        where=where,
        needs=needs,
        off=off,
        tokens=1,
    )


def done(reason: Reason, turn_id: str = "turn_1", **delta: Any) -> Done:
    return Done(
        conversation_id="c",
        turn_id=turn_id,
        message_id="msg2",
        seq=9,
        reason=reason,
        chars=len(TEXT),
        usage=Usage(prompt_tokens=1, cached_tokens=0, generated_tokens=1, sent_tokens=1, wasted_tokens=0),
        timing=Timing(queued_ms=None, first_token_ms=None, total_ms=1.0),
        text_sha256="0" * 64,
        saved=True,
        **delta,
    )


def pieces(kind: type[Delta | Reasoning], text: str, cuts: list[int], overlap: int) -> list[Frame]:
    """A text in pieces, each of which may tell a part of the one before once more."""
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    return [piece(kind, text, max(start - overlap, 0), end) for start, end in pairwise(places)]


def encoded(encoder: ChunkEncoder, frames: list[Frame]) -> list[dict[str, Any]]:
    """What a reader gets."""
    chunks: list[Chunk] = []
    for frame in frames:
        chunks += encoder.encode(frame)
    return [json.loads(encode(chunk)) for chunk in chunks]


def started_encoder() -> ChunkEncoder:
    encoder = ChunkEncoder(ref="r")
    encoder.client_msg_id = "m1"
    return encoder


def text_of(chunks: list[dict[str, Any]], kind: str) -> str:
    return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == f"{kind}-delta")


@given(PIECES, PIECES, st.integers(0, 3), st.sampled_from(Reason), st.integers(0, 40))
def test_any_cut_of_text_and_thoughts_is_a_message(
    text_cuts: list[int], thought_cuts: list[int], overlap: int, reason: Reason, joined_at: int
) -> None:
    events = [
        *pieces(Reasoning, THOUGHT, thought_cuts, overlap),
        *pieces(Delta, TEXT, text_cuts, overlap),
    ]
    whole = [accepted(), *events, done(reason)]
    chunks = encoded(started_encoder(), whole)
    check(chunks, whole=reason is not Reason.TOOLS)
    assert (text_of(chunks, "text"), text_of(chunks, "reasoning")) == (TEXT, THOUGHT)
    # Who comes in the middle of it has the same message.
    events, rest = events[:joined_at], [*events[joined_at:], done(reason)]
    late = encoded(ChunkEncoder(ref="r"), [page(snapshot_of(events)), *rest])
    check(late, whole=reason is not Reason.TOOLS)
    assert (text_of(late, "text"), text_of(late, "reasoning")) == (TEXT, THOUGHT)
    assert late[0] == chunks[0]


def snapshot_of(events: list[Frame]) -> ShownMessage:
    """A running reply as far as these events tell it."""
    texts = {Delta: "", Reasoning: ""}
    for event in events:
        if isinstance(event, Delta | Reasoning):
            texts[type(event)] = texts[type(event)][: event.off] + event.text
    return message("running", texts[Delta], reasoning=texts[Reasoning])


def message(status: str, content: str, *, turn_id: str = "turn_1", **delta: Any) -> ShownMessage:
    return ShownMessage(
        message_id="msg2",
        parent_id="msg",
        siblings=[],
        sibling_count=1,
        sibling_index=0,
        turn_id=turn_id,
        role="assistant",
        content=content,
        status=status,
        created_at=0,
        **delta,
    )


def page(*replies: ShownMessage, ref: str = "r") -> HistoryPage:
    return HistoryPage(conversation_id="c", epoch="e", seq=5, messages=list(replies), ref=ref)


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.booleans()), max_size=4), st.sampled_from(CallState))
def test_calls_anywhere_in_a_text_are_steps_of_one_message(
    calls: list[tuple[int, bool]], state: CallState
) -> None:
    """Live, and as the history has them: the same parts."""
    at, events, kept = 0, [], []
    for number, (off, is_server) in enumerate(sorted(calls)):
        where: Where = "server" if is_server else "client"
        events += [piece(Delta, TEXT, at, off)] if off > at else []
        at, tool_call = max(at, off), call(f"call_{number}", off, where=where)
        events.append(tool_call)
        kept.append(
            ShownCall(
                call_id=tool_call.call_id,
                index=number,
                name="f",
                args="{}",
                args_sha256=tool_call.args_sha256,
                where=where,
                needs="none",
                off=off,
                state=state,
            )
        )
    events += [piece(Delta, TEXT, at, len(TEXT))] if at < len(TEXT) else []
    live = encoded(started_encoder(), [accepted(), *events])
    check(live, whole=False)
    assert text_of(live, "text") == TEXT
    states: list[Frame] = [
        ToolState(conversation_id="c", turn_id="turn_1", seq=6, call_id=one.call_id, state=state)
        for one in kept
    ]
    reply = message("running", TEXT, calls=tuple(kept))
    late = encoded(ChunkEncoder(ref="r"), [page(reply)])
    check(late, whole=False)
    assert text_of(late, "text") == TEXT
    settled = encoded(started_encoder(), [accepted(), *events, *states])
    assert sorted(chunk["type"] for chunk in late) == sorted(chunk["type"] for chunk in settled), (
        "whatever came of calls is told"
    )


def test_a_message_goes_on_by_itself_behind_calls_of_the_servers() -> None:
    tool_call = call("call_1", 0)
    ended = ToolState(
        conversation_id="c", turn_id="turn_1", seq=4, call_id="call_1", state=CallState.DONE, content="x"
    )
    second = accepted("turn_2", follows="turn_1")
    chunks = encoded(
        started_encoder(),
        [
            accepted(),
            tool_call,
            done(Reason.TOOLS, open=("call_1",)),
            ended,
            second,
            piece(Delta, "Noon.", 0, 5, "turn_2"),
            done(Reason.STOP, "turn_2"),
        ],
    )
    check(chunks)
    assert [chunk["type"] for chunk in chunks].count("start-step") == 2
    assert text_of(chunks, "text") == "Noon."


def test_a_message_ends_where_all_that_is_open_waits_for_its_client() -> None:
    encoder = started_encoder()
    own, servers = call("call_1", 0, where="client"), call("call_2", 0)
    chunks = encoded(encoder, [accepted(), own, servers, done(Reason.TOOLS, open=("call_1", "call_2"))])
    check(chunks, whole=False)
    assert not encoder.is_over
    moved = ToolState(
        conversation_id="c", turn_id="turn_1", seq=6, call_id="call_2", state=CallState.DONE, content=""
    )
    assert encoded(encoder, [moved])[-1] == {"type": "finish", "finishReason": "tool-calls"}
    assert encoder.end is StreamEnd.WAITING_FOR_CLIENT


def history_call(tool_call: ToolCall, state: CallState = CallState.WAITING) -> ShownCall:
    """A call as the history has it."""
    return ShownCall(
        call_id=tool_call.call_id,
        index=0,
        name=tool_call.name,
        args=tool_call.args,
        args_sha256=tool_call.args_sha256,
        where=tool_call.where,
        needs=tool_call.needs,
        off=tool_call.off,
        state=state,
    )


def moved(call_id: str, state: CallState = CallState.DONE) -> ToolState:
    return ToolState(conversation_id="c", turn_id="turn_1", seq=6, call_id=call_id, state=state, content="")


def test_what_a_client_has_answered_waits_for_it_no_more_whenever_that_is_told() -> None:
    """Another replica may confirm answers before it tells the changes of their calls."""
    calls = [call("call_1", 0, where="client"), call("call_2", 0, where="client")]
    encoder = ChunkEncoder(ref="r")
    encoder.continue_from("m", message("tools", "", calls=tuple(map(history_call, calls))))
    for one in calls:
        encoder.answered(one.call_id, is_allowed=False)
    settled = CallsAnswered(ref="r", has_new_answers=True)
    second = [accepted("turn_2", follows="turn_1"), piece(Delta, TEXT, 0, len(TEXT), "turn_2")]
    chunks = encoded(
        encoder, [moved("call_1"), settled, moved("call_2"), *second, done(Reason.STOP, "turn_2")]
    )
    check(chunks)
    assert (chunks[0]["messageId"], text_of(chunks, "text")) == ("m", TEXT)


def test_who_repeats_an_answer_while_another_call_runs_is_told_the_rest() -> None:
    calls = (
        history_call(call("call_1", 0, where="client"), CallState.DONE),
        history_call(call("call_2", 0), CallState.RUNNING),
    )
    encoder = ChunkEncoder(ref="r")
    encoder.continue_from("m", message("tools", "", calls=calls))
    second = [accepted("turn_2", follows="turn_1"), piece(Delta, TEXT, 0, len(TEXT), "turn_2")]
    chunks = encoded(
        encoder,
        [
            CallsAnswered(ref="r", has_new_answers=False),
            moved("call_2"),
            *second,
            done(Reason.STOP, "turn_2"),
        ],
    )
    check(chunks)
    assert text_of(chunks, "text") == TEXT


def test_other_turns_of_the_conversation_are_not_told() -> None:
    others = [
        accepted("turn_0", follows="turn_x"),
        piece(Delta, TEXT, 0, 3, "turn_0"),
        done(Reason.STOP, "turn_0"),
    ]
    assert encoded(started_encoder(), others) == []


def test_what_cant_be_told_ends_in_a_sentence() -> None:
    for last in (Gap(conversation_id="c", epoch="e", min_seq=1), Error(ref="r", code="busy", message="No.")):
        chunks = encoded(started_encoder(), [accepted(), piece(Delta, TEXT, 0, 3), last])
        check(chunks)
        assert chunks[-1]["type"] == "error"
        assert chunks[-1]["errorText"].endswith(".")
