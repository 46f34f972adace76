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
    assert read(*pieces) == read(*(stream[at : at + 1] for at in range(len(stream)))) == read(stream)


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), min_size=1)))
def test_what_was_written_is_read(texts: list[str]) -> None:
    stream = "".join(f"data: {text}\n\n" for text in texts).encode()
    assert [event.data for event in read(stream)] == texts


@pytest.mark.parametrize(
    ("stream", "event"),
    [
        (b"event: error\ndata: a\ndata: b\n\n", ServerSentEvent("a\nb", "error")),
        (b"\xef\xbb\xbfdata: a\n\n", ServerSentEvent("a")),
        (b"data: [DONE]", ServerSentEvent("[DONE]")),
    ],
    ids=["lines are joined, with their kind", "a mark of byte order", "no empty line at the end"],
)
def test_an_event_is_read(stream: bytes, event: ServerSentEvent) -> None:
    assert read(stream) == [event]
    assert EventReader().feed(b"data: a\r\r") == [ServerSentEvent("a")], "as soon as its empty line begins"


def test_an_event_without_end_is_refused_but_comments_may_come_for_ever() -> None:
    reader = EventReader(most_bytes=100)
    assert [reader.feed(b": still here\n") for _ in range(20)] == [[]] * 20
    assert reader.feed(b"data: 123456\n" * 5) == []
    with pytest.raises(EventTooLong):
        reader.feed(b"data: 123456\n" * 5)
