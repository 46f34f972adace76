"""What happens in a conversation, as chunks: however it is cut, a reader of the AI SDK takes it, and has the whole text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from connections.api.ai_sdk.encoder import CallsAnswered, Chunk, ChunkEncoder, encode
from connections.protocol.frames import Frame
from sessions.conversation.history_page import ShownMessage
from sessions.events import (
    CallState,
    Delta,
    Gap,
    Reason,
    Reasoning,
    ShownCall,
)
from tests.connections.aisdk.stream_checker import check
from tests.connections.factory import (
    accepted,
    call,
    call_state,
    delta,
    done,
    page,
    reasoning,
    shown_call,
    shown_message,
)

TEXT = "Grüße, 🙂 and good day."
THOUGHT = "Hm… 🤔 so."
PIECES = st.lists(st.integers(0, len(TEXT)), max_size=6)


KINDS = {Delta: delta, Reasoning: reasoning}


def pieces(kind: type[Delta | Reasoning], text: str, cuts: list[int], overlap: int) -> list[Frame]:
    """A text in pieces, each of which may tell a part of the one before once more."""
    places = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    starts = [(max(start - overlap, 0), end) for start, end in pairwise(places)]
    return [KINDS[kind](text[start:end], start) for start, end in starts]


def encoded(encoder: ChunkEncoder, frames: Sequence[Frame]) -> list[dict[str, Any]]:
    """What a reader gets."""
    chunks: list[Chunk] = []
    for frame in frames:
        chunks += encoder.encode(frame)
    return [json.loads(encode(chunk)) for chunk in chunks]


def started_encoder() -> ChunkEncoder:
    encoder = ChunkEncoder()
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
    whole = [accepted(), *events, done(chars=len(TEXT), reason=reason)]
    chunks = encoded(started_encoder(), whole)
    check(chunks, whole=reason is not Reason.TOOLS)
    assert (text_of(chunks, "text"), text_of(chunks, "reasoning")) == (TEXT, THOUGHT)
    # Who comes in the middle of it has the same message.
    events, rest = events[:joined_at], [*events[joined_at:], done(chars=len(TEXT), reason=reason)]
    late = encoded(ChunkEncoder(), [page(snapshot_of(events)), *rest])
    check(late, whole=reason is not Reason.TOOLS)
    assert (text_of(late, "text"), text_of(late, "reasoning")) == (TEXT, THOUGHT)
    assert late[0] == chunks[0]


def snapshot_of(events: list[Frame]) -> ShownMessage:
    """A running reply as far as these events tell it."""
    texts = {Delta: "", Reasoning: ""}
    for event in events:
        if isinstance(event, Delta | Reasoning):
            texts[type(event)] = texts[type(event)][: event.off] + event.text
    return shown_message(texts[Delta], status="running", reasoning=texts[Reasoning])


@given(st.lists(st.tuples(st.integers(0, len(TEXT)), st.booleans()), max_size=4), st.sampled_from(CallState))
def test_calls_anywhere_in_a_text_are_steps_of_one_message(
    calls: list[tuple[int, bool]], state: CallState
) -> None:
    """Live, and as the history has them: the same parts."""
    at, events, kept = 0, list[Frame](), []
    for number, (off, is_server) in enumerate(sorted(calls)):
        about: dict[str, Any] = {"index": number, "off": off, "where": "server" if is_server else "client"}
        events += [delta(TEXT[at:off], at)] if off > at else []
        at = max(at, off)
        events.append(call(f"call_{number}", **about))
        kept.append(shown_call(f"call_{number}", state, **about))
    events += [delta(TEXT[at:], at)] if at < len(TEXT) else []
    live = encoded(started_encoder(), [accepted(), *events])
    check(live, whole=False)
    assert text_of(live, "text") == TEXT
    states = [call_state(one.call_id, state=state) for one in kept]
    reply = shown_message(TEXT, status="running", calls=tuple(kept))
    late = encoded(ChunkEncoder(), [page(reply)])
    check(late, whole=False)
    assert text_of(late, "text") == TEXT
    settled = encoded(started_encoder(), [accepted(), *events, *states])
    assert sorted(chunk["type"] for chunk in late) == sorted(chunk["type"] for chunk in settled), (
        "whatever came of calls is told"
    )


NOON = (accepted("turn_2", follows="t"), delta("Noon.", turn_id="turn_2"), done("turn_2", 5))
TOOLS = Reason.TOOLS


def continuing(*calls: ShownCall) -> ChunkEncoder:
    encoder = ChunkEncoder()
    encoder.continue_from("m", shown_message("", status="tools", calls=calls))
    return encoder


def test_what_a_client_has_answered_waits_for_it_no_more_whenever_that_is_told() -> None:
    """Another replica may confirm answers before it tells the changes of their calls."""
    encoder = continuing(shown_call(), shown_call("call_2"))
    for call_id in ("call_1", "call_2"):
        encoder.answered(call_id)
    settled = CallsAnswered(has_new_answers=True)
    chunks = encoded(encoder, [call_state(content=""), settled, call_state("call_2", content=""), *NOON])
    check(chunks)
    assert (chunks[0]["messageId"], text_of(chunks, "text")) == ("m", "Noon.")


def test_who_repeats_an_answer_while_another_call_runs_is_told_the_rest() -> None:
    running = shown_call("call_2", CallState.RUNNING, where="server")
    encoder = continuing(shown_call(state=CallState.DONE), running)
    repeated = CallsAnswered(has_new_answers=False)
    chunks = encoded(encoder, [repeated, call_state("call_2", content=""), *NOON])
    check(chunks)
    assert text_of(chunks, "text") == "Noon."


def test_other_turns_of_the_conversation_are_not_told() -> None:
    others = [accepted("turn_0", follows="turn_x"), delta(TEXT[:3], turn_id="turn_0"), done("turn_0")]
    assert encoded(started_encoder(), others) == []


def test_what_cant_be_told_ends_in_a_sentence() -> None:
    gap = Gap(conversation_id="c", epoch="e", min_seq=1)
    chunks = encoded(started_encoder(), [accepted(), delta(TEXT[:3]), gap])
    check(chunks)
    assert chunks[-1]["type"] == "error"
    assert chunks[-1]["errorText"].endswith(".")
