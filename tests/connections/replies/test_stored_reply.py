"""One reader of a turn that is kept: pieces merge while it is late, and what it was handed is what a stop keeps."""

from __future__ import annotations

import pytest

from connections.replies.stored_reply import StoredReply
from engine.messages import ToolCall
from sessions import events
from sessions.errors import NotFound
from sessions.events import Accepted, Deleted, Delta, Gap, Reasoning, Snapshot
from sessions.running.waiting_pieces import Text, Thought

PLACE = "c"


def delta(
    text: str, off: int, kind: type[Delta | Reasoning] = Delta, turn_id: str = "turn_1"
) -> Delta | Reasoning:
    return kind(
        conversation_id=PLACE, turn_id=turn_id, seq=off + 2, first_seq=off + 2, off=off, text=text, tokens=1
    )


def call(off: int) -> events.ToolCall:
    return events.ToolCall(
        conversation_id=PLACE,
        turn_id="turn_1",
        seq=9,
        call_id="call_1",
        index=0,
        name="f",
        args="{}",
        args_sha256="",
        where="client",
        needs="none",
        off=off,
        tokens=1,
    )


def test_neighbours_merge_and_other_turns_are_left_out() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("Hm.", 0, Reasoning))
    reply.publish(delta("Not mine.", 0, turn_id="turn_2"))
    for text, off in (("One", 0), (" two", 3)):
        reply.publish(delta(text, off))
    assert reply.get_nowait() == Thought("Hm.")
    assert reply.get_nowait() == Text("One two")
    assert reply.get_nowait() is None
    assert (reply.handed("turn_1"), reply.thought("turn_1"), reply.handed("turn_2")) == (7, 3, 0)


def test_what_waits_beyond_a_cut_is_withdrawn() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("One", 0))
    assert reply.get_nowait() == Text("One")
    reply.publish(delta(" two", 3))
    reply.publish(call(7))
    reply.withdraw("turn_1", 5, 0)
    assert reply.get_nowait() == Text(" t")
    assert reply.get_nowait() is None


def test_calls_before_a_cut_stay() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("One", 0))
    reply.publish(call(3))
    reply.withdraw("turn_1", 3, 0)
    assert [reply.get_nowait(), reply.get_nowait()] == [Text("One"), ToolCall("call_1", "f", "{}")]


def test_whoever_missed_events_is_caught_up_by_a_snapshot() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("One", 0))
    reply.publish(Gap(conversation_id=PLACE, epoch="e", min_seq=1))
    reply.publish(Snapshot(conversation_id=PLACE, epoch="e", seq=5, turn_id="turn_1", text="One two"))
    reply.publish(delta(" three", 7))
    assert reply.get_nowait() == Text("One two three")


def test_a_late_reader_is_cut_off() -> None:
    reply, cut = StoredReply(turn_id="turn_1"), list[bool]()
    reply.cut_off = lambda: cut.append(True)
    reply.publish(delta("x" * 300_000, 0))
    assert cut == [True]


def test_the_turn_that_follows_calls_is_known_by_the_one_that_called() -> None:
    reply = StoredReply(follows="turn_1")
    for turn_id, follows in (("turn_9", None), ("turn_2", "turn_1")):
        reply.publish(
            Accepted(
                conversation_id=PLACE,
                client_msg_id="m",
                turn_id=turn_id,
                message_id="msg_1",
                epoch="e",
                seq=1,
                follows=follows,
            )
        )
    assert reply.turn_id == "turn_2"


def test_a_conversation_that_is_deleted_is_an_end() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(Deleted(conversation_id=PLACE))
    assert reply.is_over
    with pytest.raises(NotFound):
        reply.get_nowait()
