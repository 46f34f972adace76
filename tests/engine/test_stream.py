"""What a late reader of a reply gets, and how long text waited for it."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import MERGED_CHARS, DeliveryTimes, Streamer
from engine.errors import EngineLost
from engine.messages import Chunk, Finished, FinishReason, Output, Prefilling, Queued, Started

STARTED = Started("r", 7)
END = Finished("r", FinishReason.STOP, 7, 0, 3)


def stream_of(*outputs: Output) -> Streamer:
    stream = Streamer("r", lambda _: None)
    for output in outputs:
        stream.put_nowait(output)
    return stream


def test_text_is_not_merged_beyond_what_a_frame_may_hold() -> None:
    piece = "x" * (MERGED_CHARS // 2)
    stream = stream_of(*(Chunk("r", piece, 1) for _ in range(3)), Chunk("r", piece * 3, 2), END)
    taken = [stream.get_nowait() for _ in range(4)]
    assert taken == [Chunk("r", piece * 2, 2), Chunk("r", piece, 1), Chunk("r", piece * 3, 2), END]


def test_of_reports_that_wait_the_newest_is_told() -> None:
    stream = stream_of(Queued("r", 3), Queued("r", 2))
    assert (stream.get_nowait(), stream.get_nowait()) == (Queued("r", 2), None)
    stream = stream_of(Queued("r", 1), STARTED, Prefilling("r", 0.25), Prefilling("r", 0.5))
    assert [stream.get_nowait() for _ in range(3)] == [STARTED, Prefilling("r", 0.5), None]


def output_sequences() -> st.SearchStrategy[list[Output]]:
    """What engines tell of a request from its submission to its end, preemptions included."""
    waits = st.lists(st.builds(Queued, st.just("r"), st.integers(1, 9)), max_size=3)
    prefills = st.lists(st.builds(Prefilling, st.just("r"), st.floats(0, 1)), max_size=3)
    chunks = st.lists(st.builds(Chunk, st.just("r"), st.sampled_from("abc"), st.integers(1, 3)), max_size=4)
    runs = st.lists(st.tuples(waits, st.just([STARTED]), prefills, chunks), max_size=3)
    return runs.map(lambda parts: [*(one for run in parts for stage in run for one in stage), END])


def take_outputs(stream: Streamer, most: int) -> list[Output]:
    taken: list[Output] = []
    with suppress(StopAsyncIteration):
        while len(taken) < most and (output := stream.get_nowait()) is not None:
            taken.append(output)
    return taken


def text_and_count(outputs: list[Output]) -> tuple[str, int]:
    chunks = [output for output in outputs if isinstance(output, Chunk)]
    return "".join(chunk.text for chunk in chunks), sum(chunk.tokens for chunk in chunks)


@given(output_sequences(), st.data())
def test_however_late_the_reader_is_text_and_end_are_whole(
    outputs: list[Output], data: st.DataObject
) -> None:
    stream, got = stream_of(), list[Output]()
    for output in outputs:
        stream.put_nowait(output)
        got += take_outputs(stream, data.draw(st.integers(0, 3)))
    rest = take_outputs(stream, 4)
    assert len(rest) <= 3
    got += rest

    assert text_and_count(got) == text_and_count(outputs)
    assert [one for one in got if isinstance(one, Finished)] == [got[-1]] == [END]


@given(output_sequences(), st.data())
def test_a_report_is_told_while_it_is_the_newest_thing_known(
    outputs: list[Output], data: st.DataObject
) -> None:
    stream = stream_of()
    for output in outputs:
        stream.put_nowait(output)
        for reported in take_outputs(stream, data.draw(st.integers(0, 3))):
            assert reported is output or not isinstance(reported, Queued | Prefilling)


@given(output_sequences())
def test_a_reader_that_is_never_late_gets_all_as_it_was(outputs: list[Output]) -> None:
    stream = stream_of()
    for output in outputs:
        stream.put_nowait(output)
        assert take_outputs(stream, 2) == [output]


def test_nothing_comes_after_the_end() -> None:
    stream = stream_of(END, Chunk("r", "late", 1))
    stream.fail(EngineLost("too late as well"))
    assert stream.get_nowait() == END
    for _ in range(2):
        with pytest.raises(StopAsyncIteration):
            stream.get_nowait()


def test_a_lost_stream_gives_what_came_before_and_then_raises() -> None:
    stream = stream_of(Chunk("r", "a", 1))
    stream.fail(EngineLost("it died"))
    assert stream.get_nowait() == Chunk("r", "a", 1)
    for _ in range(2):
        with pytest.raises(EngineLost, match="it died"):
            stream.get_nowait()


def test_cancel_is_asked_once_and_never_after_the_end() -> None:
    requested: list[str] = []
    stream = Streamer("r", requested.append)
    stream.cancel()
    stream.cancel()
    ended = Streamer("s", requested.append)
    ended.put_nowait(END)
    ended.cancel()
    assert requested == ["r"]


def test_a_piece_is_as_old_as_its_oldest_part_and_its_wait_is_counted_from_then() -> None:
    deliveries, now = DeliveryTimes(), monotonic()
    stream = Streamer("r", lambda _: None, deliveries)
    assert stream.made_at is None
    stream.put_nowait(STARTED, now - 400)
    for ago, text in ((300, "a"), (200, "b"), (100, "x" * MERGED_CHARS)):
        stream.put_nowait(Chunk("r", text, 1), now - ago)
    assert (stream.get_nowait(), stream.made_at) == (STARTED, None)
    assert (stream.get_nowait(), stream.made_at) == (Chunk("r", "ab", 2), now - 300)
    stream.get_nowait()
    assert (stream.made_at, deliveries.count) == (now - 100, 2)
    assert deliveries.seconds == pytest.approx(400, abs=10)


def test_an_engine_that_takes_over_gets_the_cancel_and_counts_from_then_on() -> None:
    before, after, cancelled = DeliveryTimes(), DeliveryTimes(), list[str]()
    stream = Streamer("r", lambda _: None, before)
    stream.redirect(cancelled.append, after)
    stream.put_nowait(Chunk("r", "a", 1))
    stream.get_nowait()
    stream.cancel()
    assert (before.count, after.count, cancelled) == (0, 1, ["r"])
