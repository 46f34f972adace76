"""Server-sent events mean the same however their bytes come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.upstream.http_client import EventReader, EventTooLong, ServerSentEvent

LINES = st.sampled_from(
    [
        b"data: one",
        b"data:two",
        b"data",
        b"data:  spaced",
        b": comment",
        b"event: error",
        b"id: 7",
        b"",
        "data: 👩‍👩‍👧 é".encode(),
        b"data: \xff",
    ]
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])
STREAMS = st.lists(st.tuples(LINES, ENDS)).map(lambda lines: b"".join(line + end for line, end in lines))


def read(*pieces: bytes) -> list[ServerSentEvent]:
    reader = EventReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end()


@given(STREAMS, st.lists(st.integers(0, 400)))
def test_any_split_of_the_bytes_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[one:other] for one, other in pairwise(places)]
    assert read(*pieces) == read(stream)


@given(STREAMS)
def test_one_byte_at_a_time_gives_the_same_events(stream: bytes) -> None:
    assert read(*(stream[at : at + 1] for at in range(len(stream)))) == read(stream)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)))
def test_what_was_written_is_read(texts: list[str]) -> None:
    stream = "".join(f"data: {text}\n\n" for text in texts).encode()
    assert [event.data for event in read(stream)] == texts


def test_lines_of_one_event_are_joined_and_its_kind_is_told() -> None:
    assert read(b"event: error\ndata: a\ndata: b\n\n") == [ServerSentEvent("a\nb", "error")]


def test_an_event_is_told_as_soon_as_its_empty_line_has_begun() -> None:
    assert EventReader().feed(b"data: a\r\r") == [ServerSentEvent("a")]


def test_a_mark_of_byte_order_is_passed_over() -> None:
    assert read(b"\xef\xbb\xbfdata: a\n\n") == [ServerSentEvent("a")]


def test_a_last_event_without_its_empty_line_counts() -> None:
    assert read(b"data: [DONE]") == [ServerSentEvent("[DONE]")]


def test_an_event_without_end_is_refused() -> None:
    reader = EventReader(most_bytes=100)
    assert reader.feed(b"data: 123456\n" * 5) == []
    with pytest.raises(EventTooLong):
        reader.feed(b"data: 123456\n" * 5)


def test_comments_for_ever_are_no_long_event() -> None:
    reader = EventReader(most_bytes=100)
    assert [reader.feed(b": still here\n") for _ in range(20)] == [[]] * 20
