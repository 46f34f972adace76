"""The checker finds each broken promise, and nothing else."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.chaos.event_checker import EventChecker, Frame, differences

IDS = {"conversation_id": "c", "turn_id": "t"}


def accepted(seq: int = 1, **fields: Any) -> Frame:
    return {"type": "accepted", "seq": seq, "epoch": "e", "message_id": "m", **IDS, **fields}


def delta(seq: int, off: int, text: str, **fields: Any) -> Frame:
    return {"type": "delta", "seq": seq, "first_seq": seq, "off": off, "text": text, **IDS, **fields}


def done(seq: int, text: str, **fields: Any) -> Frame:
    digest = hashlib.sha256(text.encode()).hexdigest()
    end = {"type": "done", "seq": seq, "chars": len(text), "text_sha256": digest, "message_id": "r"}
    return {**end, **IDS, **fields}


def lost(epoch: str, seq: int) -> tuple[Frame, Frame]:
    """What says that the store lost events: a gap, and where the conversation stands."""
    gap = {"type": "gap", "conversation_id": "c", "epoch": epoch, "min_seq": 1}
    return gap, {"type": "snapshot", "epoch": epoch, "seq": seq, "text": "Good ", **IDS}


def call(seq: int) -> Frame:
    return {"type": "tool_call", "seq": seq, "call_id": "call", "needs": "none", "where": "client", **IDS}


def moved(seq: int, state: str) -> Frame:
    return {"type": "tool_state", "seq": seq, "call_id": "call", "state": state, **IDS}


def entered(*frames: Frame) -> EventChecker:
    event_checker = EventChecker("c")
    for frame in frames:
        event_checker.take(frame)
    return event_checker


BEGUN = (accepted(), delta(2, 0, "Good "))
WHOLE = (*BEGUN, delta(3, 5, "day."), done(4, "Good day."))
UNSAVED = (*BEGUN, done(3, "Good ", saved=False))
CALLED = (accepted(), call(2), done(3, "", reason="tools"), moved(4, "running"), moved(5, "done"))
DELETED = {"type": "deleted", "conversation_id": "c"}
KEPT = [
    {"turn_id": "t", "role": "user", "content": "Hello.", "status": "complete"},
    {"turn_id": "t", "role": "assistant", "content": "Good day.", "status": "complete"},
]
FAULTS: dict[str, tuple[Frame, ...]] = {
    "a gap": (accepted(), delta(3, 0, "Good "), done(4, "Good ")),
    "the same twice": (*BEGUN, delta(2, 0, "Good "), done(3, "Good ")),
    "another offset": (*BEGUN, delta(3, 4, "day."), done(4, "Good day.")),
    "nothing": (accepted(), delta(2, 0, ""), done(3, "")),
    "another text": (*BEGUN, done(3, "Bad ")),
    "two ends": (*WHOLE, done(5, "Good day.")),
    "text after the end": (*WHOLE, delta(5, 9, "!")),
    "a repetition that says otherwise": (*WHOLE, accepted(duplicate=True), done(4, "Bad day.")),
    "an end that is lost in the same epoch": (*BEGUN, done(3, "Good "), *lost("e", 2), done(3, "Good ")),
    "another beginning": (*WHOLE, accepted(epoch="f", turn_id="u")),
    "a call that is settled twice": (*CALLED, moved(6, "cancelled")),
}
HONEST: dict[str, tuple[tuple[Frame, ...], int]] = {
    "a whole turn": (WHOLE, 0),
    "an end that covers what was withdrawn": ((accepted(), delta(2, 0, "Good day"), done(5, "Good", first_seq=3)), 0),
    "a repetition": (
        (*WHOLE, accepted(duplicate=True), delta(3, 0, "Good day.", first_seq=2), done(4, "Good day.")), 0
    ),
    "a reader that joins in the middle": ((delta(7, 5, "day."), done(8, "Good day.")), 0),
    "a gap and a snapshot": ((accepted(), *lost("f", 99), delta(100, 5, "day."), done(101, "Good day.")), 0),
    "another one after a deletion": ((*WHOLE, DELETED, accepted(epoch="f", turn_id="u")), 0),
    "a call": (CALLED, 0),
    "an end that the store lost": ((*BEGUN, done(3, "Good "), *lost("f", 2), done(3, "Good ")), 1),
    "an unsaved end that is sent otherwise": ((*UNSAVED, accepted(duplicate=True), done(3, "")), 1),
    "an unsaved end that died with its replica": ((*UNSAVED, *lost("e", 2)), 1),
}  # fmt: skip
"""What keeps all promises, with the number of ends that were lost."""


@pytest.mark.parametrize("frames", FAULTS.values(), ids=FAULTS)
def test_a_broken_promise_is_a_fault(frames: tuple[Frame, ...]) -> None:
    assert len(entered(*frames).faults) >= 1


@pytest.mark.parametrize(("frames", "lost_ends"), HONEST.values(), ids=HONEST)
def test_a_promise_that_is_kept_is_none(frames: tuple[Frame, ...], lost_ends: int) -> None:
    event_checker = entered(*frames)
    assert (event_checker.faults, event_checker.lost_ends) == ([], lost_ends)


@pytest.mark.parametrize(
    ("frames", "kept", "named"),
    [
        (WHOLE, KEPT, ""),
        (WHOLE, [], "not in the history"),
        (WHOLE, [KEPT[1] | {"content": "Bad day."}], "Bad day."),
        (WHOLE, [KEPT[1] | {"status": "running"}], "has no end"),
        ((*WHOLE, {"type": "removed", "seq": 5, **IDS}), [], ""),
        ((*WHOLE, {"type": "removed", "seq": 5, **IDS}), KEPT, "was removed"),
        ((*WHOLE, DELETED, accepted(epoch="f", turn_id="u")), [], "u was never told to end"),
        (CALLED, [KEPT[1] | {"content": "", "calls": [{"call_id": "call", "state": "done"}]}], ""),
        (
            CALLED,
            [KEPT[1] | {"content": "", "calls": [{"call_id": "call", "state": "lost"}]}],
            "told as done",
        ),
        (CALLED, [KEPT[1] | {"content": "", "calls": [{"call_id": "call", "state": "waiting"}]}], "for ever"),
    ],
)
def test_another_history_is_a_difference(frames: tuple[Frame, ...], kept: list[Frame], named: str) -> None:
    found = "".join(differences(entered(*frames), kept))
    assert named in found
    assert bool(named) == bool(found)


@pytest.mark.parametrize(("reason", "state"), [("tools", "waiting"), ("interrupted", "cancelled")])
def test_an_end_that_is_not_by_calls_cancels_them(reason: str, state: str) -> None:
    assert entered(accepted(), call(2), done(3, "", reason=reason)).calls["call"]["state"] == state
