"""The ledger finds each broken promise."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.chaos.event_checker import EventChecker, Frame, differences


def accepted(seq: int = 1, **fields: Any) -> Frame:
    return {"type": "accepted", "seq": seq, "epoch": "e", "message_id": "m", **_common(), **fields}


def delta(seq: int, off: int, text: str, **fields: Any) -> Frame:
    return {"type": "delta", "seq": seq, "first_seq": seq, "off": off, "text": text, **_common(), **fields}


def done(seq: int, text: str, **fields: Any) -> Frame:
    digest = hashlib.sha256(text.encode()).hexdigest()
    end = {"type": "done", "seq": seq, "chars": len(text), "text_sha256": digest, "message_id": "r"}
    return {**end, **_common(), **fields}


def _common() -> Frame:
    return {"conversation_id": "c", "turn_id": "t"}


def entered(*frames: Frame) -> EventChecker:
    event_checker = EventChecker("c")
    for frame in frames:
        event_checker.take(frame)
    return event_checker


WHOLE = (accepted(), delta(2, 0, "Good "), delta(3, 5, "day."), done(4, "Good day."))
KEPT = [
    {"turn_id": "t", "role": "user", "content": "Hello.", "status": "complete"},
    {"turn_id": "t", "role": "assistant", "content": "Good day.", "status": "complete"},
]


def test_a_turn_that_kept_all_promises_has_no_fault() -> None:
    event_checker = entered(*WHOLE)
    assert (event_checker.faults, event_checker.seq, event_checker.turns["t"].text) == ([], 4, "Good day.")
    assert differences(event_checker, KEPT) == []


@pytest.mark.parametrize(
    "frames",
    [
        (accepted(), delta(3, 0, "Good "), done(4, "Good ")),
        (accepted(), delta(2, 0, "Good "), delta(2, 0, "Good "), done(3, "Good ")),
        (accepted(), delta(2, 0, "Good "), delta(3, 4, "day."), done(4, "Good day.")),
        (accepted(), delta(2, 0, ""), done(3, "")),
        (accepted(), delta(2, 0, "Good "), done(3, "Bad ")),
        (*WHOLE, done(5, "Good day.")),
        (*WHOLE, delta(5, 9, "!")),
    ],
    ids=["a gap", "the same twice", "another offset", "nothing", "another text", "two ends", "text behind"],
)
def test_a_broken_promise_is_a_fault(frames: tuple[Frame, ...]) -> None:
    assert len(entered(*frames).faults) >= 1


def test_an_end_covers_what_was_withdrawn_and_cuts_what_was_seen() -> None:
    event_checker = entered(accepted(), delta(2, 0, "Good day"), done(5, "Good", first_seq=3))
    assert (event_checker.faults, event_checker.turns["t"].text) == ([], "Good")


def test_what_is_told_once_more_is_no_fault() -> None:
    again = (accepted(duplicate=True), delta(3, 0, "Good day.", first_seq=2), done(4, "Good day."))
    assert entered(*WHOLE, *again).faults == []


def test_what_is_told_once_more_and_otherwise_is_one() -> None:
    assert len(entered(*WHOLE, accepted(duplicate=True), done(4, "Bad day.")).faults) == 1


def test_an_end_that_was_told_as_not_saved_may_be_told_otherwise() -> None:
    reported = (accepted(), delta(2, 0, "Good "), done(3, "Good ", saved=False))
    event_checker = entered(*reported, accepted(duplicate=True), done(3, ""))
    assert (event_checker.faults, event_checker.lost_ends) == ([], 1)


@pytest.mark.parametrize(("epoch", "faults"), [("f", []), ("e", ["c: a turn that had ended runs again"])])
def test_an_end_that_the_store_lost_comes_again_in_another_epoch_alone(epoch: str, faults: list[str]) -> None:
    gap = {"type": "gap", "conversation_id": "c", "epoch": epoch, "min_seq": 1}
    snapshot = {"type": "snapshot", "epoch": epoch, "seq": 2, "text": "Good ", **_common()}
    event_checker = entered(
        accepted(), delta(2, 0, "Good "), done(3, "Good "), gap, snapshot, done(3, "Good ")
    )
    assert (event_checker.faults, event_checker.lost_ends) == (faults, 1)


def test_an_end_that_was_told_as_not_saved_may_be_lost_with_its_replica() -> None:
    gap = {"type": "gap", "conversation_id": "c", "epoch": "e", "min_seq": 1}
    snapshot = {"type": "snapshot", "epoch": "e", "seq": 2, "text": "Good ", **_common()}
    event_checker = entered(accepted(), delta(2, 0, "Good "), done(3, "Good ", saved=False), gap, snapshot)
    assert (event_checker.faults, event_checker.lost_ends) == ([], 1)


def test_behind_a_gap_the_snapshot_counts() -> None:
    gap = {"type": "gap", "conversation_id": "c", "epoch": "f", "min_seq": 90}
    snapshot = {"type": "snapshot", "epoch": "f", "seq": 99, "text": "Good ", **_common()}
    event_checker = entered(accepted(), gap, snapshot, delta(100, 5, "day."), done(101, "Good day."))
    assert (event_checker.faults, event_checker.epoch, event_checker.gaps) == ([], "f", 1)
    assert differences(event_checker, KEPT) == []


def test_a_reader_that_joins_in_the_middle_follows_from_there() -> None:
    event_checker = entered(delta(7, 5, "day."), done(8, "Good day."))
    assert (event_checker.faults, event_checker.seq) == ([], 8)
    assert differences(event_checker, KEPT) == []


@pytest.mark.parametrize(
    ("kept", "named"),
    [
        ([], "not in the history"),
        ([KEPT[1] | {"content": "Bad day."}], "Bad day."),
        ([KEPT[1] | {"status": "running"}], "has no end"),
    ],
)
def test_another_history_is_a_difference(kept: list[Frame], named: str) -> None:
    assert named in "".join(differences(entered(*WHOLE), kept))


def test_an_exchange_that_was_taken_back_is_not_in_the_history() -> None:
    event_checker = entered(*WHOLE, {"type": "removed", "seq": 5, **_common()})
    assert differences(event_checker, []) == []
    assert len(differences(event_checker, KEPT)) == 1


def test_a_conversation_that_is_told_to_be_gone_may_begin_anew() -> None:
    reported = (accepted(), delta(2, 0, "a"), done(3, "a"))
    event_checker = entered(
        *reported, {"type": "deleted", "conversation_id": "c"}, accepted(epoch="f", turn_id="u")
    )
    assert (event_checker.faults, event_checker.gone, event_checker.epoch) == ([], {"e"}, "f")
    assert differences(event_checker, []) == ["c: u was never told to end"]
    assert entered(*reported, accepted(epoch="f", turn_id="u")).faults == ["c: accepted 1..1 behind 3"]


def call(seq: int, **fields: Any) -> Frame:
    reported = {"type": "tool_call", "seq": seq, "call_id": "call", "needs": "none", "where": "client"}
    return {**reported, **_common(), **fields}


def moved(seq: int, state: str) -> Frame:
    return {"type": "tool_state", "seq": seq, "call_id": "call", "state": state, **_common()}


def test_a_call_that_is_settled_twice_is_a_fault() -> None:
    once = entered(accepted(), call(2), done(3, "", reason="tools"), moved(4, "running"), moved(5, "done"))
    assert (once.faults, once.calls["call"]["state"]) == ([], "done")
    once.take(moved(6, "cancelled"))
    assert len(once.faults) == 1


def test_a_call_that_the_history_has_otherwise_is_found() -> None:
    event_checker = entered(accepted(), call(2), done(3, "", reason="tools"), moved(4, "done"))
    kept = {"turn_id": "t", "role": "assistant", "content": "", "status": "complete"}
    assert differences(event_checker, [kept | {"calls": [{"call_id": "call", "state": "done"}]}]) == []
    for state in ("lost", "waiting"):
        assert differences(event_checker, [kept | {"calls": [{"call_id": "call", "state": state}]}]) != []


@pytest.mark.parametrize(("reason", "state"), [("tools", "waiting"), ("interrupted", "cancelled")])
def test_an_end_that_is_not_by_calls_cancels_them(reason: str, state: str) -> None:
    assert entered(accepted(), call(2), done(3, "", reason=reason)).calls["call"]["state"] == state
