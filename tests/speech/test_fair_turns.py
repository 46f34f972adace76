"""Owners take turns with the recognizer."""

from __future__ import annotations

from speech.process import FairQueue


def test_an_owner_with_many_recordings_holds_up_nobody() -> None:
    turns: FairQueue[str] = FairQueue()
    for number in range(3):
        turns.add("busy", number, f"long {number}")
    turns.add("other", 9, "short")
    assert [turns.next()[0] for _ in range(4)] == [0, 9, 0, 9]
    turns.remove(0)
    turns.remove(9)
    assert [turns.next() for _ in range(2)] == [(1, "long 1")] * 2
