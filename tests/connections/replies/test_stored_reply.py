"""One reader of a turn that is kept: pieces merge while it is late, and what it was handed is what a stop keeps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from connections.api.replies import ServerToolCall, StoredReply
from engine.messages import ToolCall
from sessions import events
from sessions.errors import NotFound, StoreDown
from sessions.events import (
    Accepted,
    CallState,
    Deleted,
    Delta,
    Done,
    Gap,
    Reason,
    Reasoning,
    ShownCall,
    Snapshot,
    Timing,
    Usage,
)
from sessions.running.ephemeral import ReasoningPiece, TextPiece
from sessions.turn.turn import SentOffsets

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


SHOWN = ShownCall(
    call_id="call_1",
    index=0,
    name="f",
    args="{}",
    args_sha256="",
    where="server",
    needs="none",
    off=0,
    state=CallState.RUNNING,
)


def test_neighbours_merge_and_other_turns_are_left_out() -> None:
    reply, sent, not_mine = StoredReply(turn_id="turn_1"), SentOffsets(), SentOffsets()
    reply.publish(delta("Hm.", 0, Reasoning), sent=sent)
    reply.publish(delta("Not mine.", 0, turn_id="turn_2"), sent=not_mine)
    for text, off in (("One", 0), (" two", 3)):
        reply.publish(delta(text, off), sent=sent)
    assert reply.get_nowait() == ReasoningPiece("Hm.")
    assert reply.get_nowait() == TextPiece("One two")
    assert reply.get_nowait() is None
    assert (sent.text, sent.reasoning, not_mine.text) == (7, 3, 0)


def test_what_waits_beyond_a_cut_is_withdrawn() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("One", 0))
    assert reply.get_nowait() == TextPiece("One")
    reply.publish(delta(" two", 3))
    reply.publish(call(7))
    reply.withdraw("turn_1", 5, 0)
    assert reply.get_nowait() == TextPiece(" t")
    assert reply.get_nowait() is None


def accepted(turn_id: str, follows: str | None = None) -> Accepted:
    return Accepted(
        conversation_id=PLACE,
        client_msg_id="m",
        turn_id=turn_id,
        message_id="msg_1",
        epoch="e",
        seq=1,
        follows=follows,
    )


def done(turn_id: str, reason: Reason, follows: str | None = None) -> Done:
    return Done(
        conversation_id=PLACE,
        turn_id=turn_id,
        message_id="msg_2",
        seq=20,
        reason=reason,
        chars=0,
        usage=Usage(prompt_tokens=1, cached_tokens=0, generated_tokens=1, sent_tokens=1, wasted_tokens=0),
        timing=Timing(queued_ms=None, first_token_ms=None, total_ms=1.0),
        text_sha256="",
        saved=True,
        follows=follows,
    )


def while_the_server_runs_a_tool() -> StoredReply:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(msgspec.structs.replace(call(0), where="server"))
    reply.publish(done("turn_1", Reason.TOOLS))
    return reply


def test_a_queued_turn_that_ends_while_a_tool_runs_is_somebody_elses() -> None:
    reply = while_the_server_runs_a_tool()
    reply.publish(done("turn_9", Reason.CANCELLED))
    assert isinstance(reply.get_nowait(), ServerToolCall)
    assert (reply.get_nowait(), reply.is_written) == (None, True)
    reply.publish(accepted("turn_2", follows="turn_1"))
    reply.publish(delta("Noon.", 0, turn_id="turn_2"))
    reply.publish(done("turn_2", Reason.STOP, follows="turn_1"))
    assert reply.get_nowait() == TextPiece("Noon.")
    assert (reply.ended.reason, reply.ended.usage.prompt_tokens, reply.is_written) == (Reason.STOP, 2, False)


@pytest.mark.parametrize("begins", [while_the_server_runs_a_tool, lambda: StoredReply(follows="turn_1")])
def test_a_turn_that_was_to_follow_and_never_could_is_an_end(begins: Callable[[], StoredReply]) -> None:
    reply = begins()
    reply.publish(done("turn_2", Reason.ERROR, follows="turn_1"))
    assert (reply.ended.reason, reply.turn_id, reply.accepted.is_set()) == (Reason.ERROR, "turn_2", True)


def test_an_end_of_a_reply_that_was_not_heard_is_none_that_can_be_told() -> None:
    reply = StoredReply(follows="turn_1")
    reply.publish(msgspec.structs.replace(done("turn_2", Reason.STOP, follows="turn_1"), chars=5))
    with pytest.raises(StoreDown):
        reply.check()


@pytest.mark.parametrize("begins", [while_the_server_runs_a_tool, lambda: StoredReply(follows="turn_1")])
def test_whoever_missed_what_followed_knows_that_it_may_be_written(begins: Callable[[], StoredReply]) -> None:
    reply = begins()
    waits = Snapshot(conversation_id=PLACE, epoch="e", seq=5, turn_id=None, calls=(SHOWN,))
    reply.publish(waits)
    reply.check()
    reply.publish(msgspec.structs.replace(waits, turn_id="turn_2", calls=()))
    with pytest.raises(StoreDown):
        reply.check()
    assert reply.is_written


def test_calls_before_a_cut_stay() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("One", 0))
    reply.publish(call(3))
    reply.withdraw("turn_1", 3, 0)
    assert [reply.get_nowait(), reply.get_nowait()] == [TextPiece("One"), ToolCall("call_1", "f", "{}")]


def test_whoever_missed_events_is_caught_up_by_a_snapshot() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("One", 0))
    reply.publish(Gap(conversation_id=PLACE, epoch="e", min_seq=1))
    reply.publish(Snapshot(conversation_id=PLACE, epoch="e", seq=5, turn_id="turn_1", text="One two"))
    reply.publish(delta(" three", 7))
    assert reply.get_nowait() == TextPiece("One two three")


def test_text_of_a_snapshot_counts_as_sent() -> None:
    reply, sent = StoredReply(turn_id="turn_1"), SentOffsets()
    snapshot = Snapshot(conversation_id=PLACE, epoch="e", seq=5, turn_id="turn_1", text="One two")
    reply.publish(snapshot, sent=sent)
    assert sent.text == 0
    assert reply.get_nowait() == TextPiece("One two")
    assert sent.text == 7


def test_a_late_reader_is_cut_off() -> None:
    reply, cut = StoredReply(turn_id="turn_1"), list[bool]()
    reply.cut_off = lambda: cut.append(True)
    reply.publish(delta("x" * 300_000, 0))
    assert cut == [True]


def test_what_waits_of_earlier_turns_counts_for_a_late_reader() -> None:
    reply, cut = StoredReply(turn_id="turn_1"), list[bool]()
    reply.cut_off = lambda: cut.append(True)
    reply.publish(delta("x" * 200_000, 0))
    reply.publish(msgspec.structs.replace(call(200_000), where="server"))
    reply.publish(done("turn_1", Reason.TOOLS))
    reply.publish(accepted("turn_2", follows="turn_1"))
    reply.publish(delta("x" * 100_000, 0, turn_id="turn_2"))
    assert cut == [True]


def test_the_turn_that_follows_calls_is_known_by_the_one_that_called() -> None:
    reply = StoredReply(follows="turn_1")
    for turn_id, follows in (("turn_9", None), ("turn_2", "turn_1")):
        reply.publish(accepted(turn_id, follows))
    assert reply.turn_id == "turn_2"


def test_a_conversation_that_is_deleted_is_an_end() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(Deleted(conversation_id=PLACE))
    with pytest.raises(NotFound):
        reply.get_nowait()
