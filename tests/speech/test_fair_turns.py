"""Owners take turns with the recognizer."""

from __future__ import annotations

from speech.process import FairQueue


def test_an_owner_with_many_recordings_holds_up_nobody() -> None:
    turns: FairQueue[str] = FairQueue()
    for number in range(3):
        turns.add("busy", number, f"long {number}")
    turns.add("other", 9, "short")
    assert [turns.next()[0] for _ in range(4)] == [0, 9, 0, 9]


def test_what_is_removed_is_done_with() -> None:
    turns: FairQueue[str] = FairQueue()
    turns.add("one", 1, "a")
    turns.add("one", 2, "b")
    turns.remove(1)
    turns.remove(7)
    assert turns.next() == (2, "b")
    turns.remove(2)
    assert not turns
