"""What text waits for its reader is measured from the first of it, and counted where it was answered."""

from __future__ import annotations

import pytest

from engine.api import MERGED_CHARS, DeliveryTimes, TimedStreamer
from engine.messages import Chunk, Started


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def put(stream: TimedStreamer, clock: Clock, at: float, text: str = "word ") -> None:
    clock.now = at
    stream.put_nowait(Chunk("r", text, 1))


def test_text_that_merges_has_waited_since_the_first_of_it_came(clock: Clock) -> None:
    deliveries = DeliveryTimes()
    stream = TimedStreamer("r", lambda _: None, deliveries, clock)
    stream.put_nowait(Started("r", 1))
    put(stream, clock, 1.0)
    put(stream, clock, 2.0)
    clock.now = 4.0
    assert isinstance(stream.get_nowait(), Started)
    assert stream.get_nowait() == Chunk("r", "word word ", 2)
    put(stream, clock, 5.0)
    clock.now = 5.5
    stream.get_nowait()
    assert (deliveries.count, deliveries.seconds) == (2, 3.5)


def test_text_that_leaves_in_pieces_has_waited_since_each_came(clock: Clock) -> None:
    deliveries = DeliveryTimes()
    stream = TimedStreamer("r", lambda _: None, deliveries, clock)
    put(stream, clock, 1.0)
    put(stream, clock, 2.0, "x" * MERGED_CHARS)
    put(stream, clock, 3.0)
    clock.now = 10.0
    pieces = [stream.get_nowait() for _ in range(3)]
    assert [piece.tokens for piece in pieces if isinstance(piece, Chunk)] == [1, 1, 1]
    assert (deliveries.count, deliveries.seconds) == (3, 9.0 + 8.0 + 7.0)


def test_who_takes_over_counts_from_then_on(clock: Clock) -> None:
    before, behind = DeliveryTimes(), DeliveryTimes()
    cancelled: list[str] = []
    stream = TimedStreamer("r", lambda _: None, before, clock)
    stream.move_to(cancelled.append, behind)
    put(stream, clock, 1.0)
    stream.get_nowait()
    stream.cancel()
    assert (before.count, behind.count, cancelled) == (0, 1, ["r"])
