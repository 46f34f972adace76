"""How long text waits for its reader is measured from its first part, and counted where it was answered."""

from __future__ import annotations

from time import monotonic

import pytest

from engine.api import MERGED_CHARS, DeliveryTimes, Streamer
from engine.messages import Chunk, Started


def put(stream: Streamer, ago_s: float, text: str = "word ") -> None:
    """Put a piece that came so long ago."""
    stream.put_nowait(Chunk("r", text, 1), monotonic() - ago_s)


def test_text_that_merges_has_waited_since_the_first_of_it_came() -> None:
    deliveries = DeliveryTimes()
    stream = Streamer("r", lambda _: None, deliveries)
    stream.put_nowait(Started("r", 1))
    put(stream, 300)
    put(stream, 200)
    assert isinstance(stream.get_nowait(), Started)
    assert stream.get_nowait() == Chunk("r", "word word ", 2)
    put(stream, 50)
    stream.get_nowait()
    assert deliveries.count == 2
    assert deliveries.seconds == pytest.approx(350, abs=10)


def test_text_that_leaves_in_pieces_has_waited_since_each_came() -> None:
    deliveries = DeliveryTimes()
    stream = Streamer("r", lambda _: None, deliveries)
    put(stream, 900)
    put(stream, 800, "x" * MERGED_CHARS)
    put(stream, 700)
    pieces = [stream.get_nowait() for _ in range(3)]
    assert [piece.tokens for piece in pieces if isinstance(piece, Chunk)] == [1, 1, 1]
    assert deliveries.count == 3
    assert deliveries.seconds == pytest.approx(2400, abs=10)


def test_who_takes_over_counts_from_then_on() -> None:
    before, behind = DeliveryTimes(), DeliveryTimes()
    cancelled: list[str] = []
    stream = Streamer("r", lambda _: None, before)
    stream.redirect(cancelled.append, behind)
    put(stream, 1)
    stream.get_nowait()
    stream.cancel()
    assert (before.count, behind.count, cancelled) == (0, 1, ["r"])
