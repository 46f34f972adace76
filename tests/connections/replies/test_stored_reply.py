"""One reader of a turn that is kept: pieces merge while it is late, and what it was handed is what a stop keeps."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from connections.api.replies import ServerToolCall, StoredReply
from engine.messages import ToolCall
from sessions.errors import NotFound, StoreDown
from sessions.events import (
    CallState,
    Deleted,
    Gap,
    Reason,
    Snapshot,
)
from sessions.running.ephemeral import ReasoningPiece, TextPiece
from sessions.turn.turn import SentOffsets
from tests.connections.factory import accepted, call, delta, done, reasoning, shown_call

SHOWN = shown_call(where="server", state=CallState.RUNNING)


def test_neighbours_merge_and_other_turns_are_left_out() -> None:
    reply, sent, not_mine = StoredReply(turn_id="turn_1"), SentOffsets(), SentOffsets()
    reply.publish(reasoning("Hm.", 0, "turn_1"), sent=sent)
    reply.publish(delta("Not mine.", 0, turn_id="turn_2"), sent=not_mine)
    for text, off in (("One", 0), (" two", 3)):
        reply.publish(delta(text, off, "turn_1"), sent=sent)
    assert reply.get_nowait() == ReasoningPiece("Hm.")
    assert reply.get_nowait() == TextPiece("One two")
    assert reply.get_nowait() is None
    assert (sent.text, sent.reasoning, not_mine.text) == (7, 3, 0)


def test_what_waits_beyond_a_cut_is_withdrawn() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("One", 0, "turn_1"))
    assert reply.get_nowait() == TextPiece("One")
    reply.publish(delta(" two", 3, "turn_1"))
    reply.publish(call(turn_id="turn_1", off=7))
    reply.withdraw("turn_1", 5, 0)
    assert reply.get_nowait() == TextPiece(" t")
    assert reply.get_nowait() is None
    reply.publish(delta("wo", 7, "turn_1"))
    reply.publish(call("call_2", "turn_1", off=9))
    reply.withdraw("turn_1", 9, 0)  # calls before a cut stay
    assert [reply.get_nowait(), reply.get_nowait()] == [TextPiece("wo"), ToolCall("call_2", "f", "{}")]


def while_the_server_runs_a_tool() -> StoredReply:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(call(turn_id="turn_1", off=0, where="server"))
    reply.publish(done("turn_1", 0, Reason.TOOLS))
    return reply


def test_a_queued_turn_that_ends_while_a_tool_runs_is_somebody_elses() -> None:
    reply = while_the_server_runs_a_tool()
    reply.publish(done("turn_9", 0, Reason.CANCELLED))
    assert isinstance(reply.get_nowait(), ServerToolCall)
    assert (reply.get_nowait(), reply.is_written) == (None, True)
    reply.publish(accepted("turn_2", follows="turn_1"))
    reply.publish(delta("Noon.", 0, turn_id="turn_2"))
    reply.publish(done("turn_2", 0, Reason.STOP, follows="turn_1"))
    assert reply.get_nowait() == TextPiece("Noon.")
    assert (reply.ended.reason, reply.ended.usage.prompt_tokens, reply.is_written) == (Reason.STOP, 14, False)


@pytest.mark.parametrize("begins", [while_the_server_runs_a_tool, lambda: StoredReply(follows="turn_1")])
def test_a_turn_that_was_to_follow_and_never_could_is_an_end(begins: Callable[[], StoredReply]) -> None:
    reply = begins()
    reply.publish(done("turn_2", 0, Reason.ERROR, follows="turn_1"))
    assert (reply.ended.reason, reply.turn_id, reply.accepted.is_set()) == (Reason.ERROR, "turn_2", True)


def test_an_end_of_a_reply_that_was_not_heard_is_none_that_can_be_told() -> None:
    reply = StoredReply(follows="turn_1")
    reply.publish(done("turn_2", 5, follows="turn_1"))
    with pytest.raises(StoreDown):
        reply.check()


@pytest.mark.parametrize("begins", [while_the_server_runs_a_tool, lambda: StoredReply(follows="turn_1")])
def test_whoever_missed_what_followed_knows_that_it_may_be_written(begins: Callable[[], StoredReply]) -> None:
    reply = begins()
    waits = Snapshot(conversation_id="c", epoch="e", seq=5, turn_id=None, calls=(SHOWN,))
    reply.publish(waits)
    reply.check()
    reply.publish(msgspec.structs.replace(waits, turn_id="turn_2", calls=()))
    with pytest.raises(StoreDown):
        reply.check()
    assert reply.is_written


def test_whoever_missed_events_is_caught_up_by_a_snapshot() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(delta("One", 0, "turn_1"))
    reply.publish(Gap(conversation_id="c", epoch="e", min_seq=1))
    reply.publish(Snapshot(conversation_id="c", epoch="e", seq=5, turn_id="turn_1", text="One two"))
    reply.publish(delta(" three", 7, "turn_1"))
    assert reply.get_nowait() == TextPiece("One two three")


def test_text_of_a_snapshot_counts_as_sent() -> None:
    reply, sent = StoredReply(turn_id="turn_1"), SentOffsets()
    snapshot = Snapshot(conversation_id="c", epoch="e", seq=5, turn_id="turn_1", text="One two")
    reply.publish(snapshot, sent=sent)
    assert sent.text == 0
    assert reply.get_nowait() == TextPiece("One two")
    assert sent.text == 7


def test_what_waits_of_earlier_turns_counts_for_a_late_reader() -> None:
    reply, cut = StoredReply(turn_id="turn_1"), list[bool]()
    reply.cut_off = lambda: cut.append(True)
    reply.publish(delta("x" * 200_000, 0, "turn_1"))
    reply.publish(call(turn_id="turn_1", off=200_000, where="server"))
    reply.publish(done("turn_1", 0, Reason.TOOLS))
    reply.publish(accepted("turn_2", follows="turn_1"))
    reply.publish(delta("x" * 100_000, 0, turn_id="turn_2"))
    assert cut == [True]


def test_the_turn_that_follows_calls_is_known_by_the_one_that_called() -> None:
    reply = StoredReply(follows="turn_1")
    for turn_id, follows in (("turn_9", None), ("turn_2", "turn_1")):
        reply.publish(accepted(turn_id, follows=follows))
    assert reply.turn_id == "turn_2"


def test_a_conversation_that_is_deleted_is_an_end() -> None:
    reply = StoredReply(turn_id="turn_1")
    reply.publish(Deleted(conversation_id="c"))
    with pytest.raises(NotFound):
        reply.get_nowait()
