"""What is told of a response, and what of that comes behind a number."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from connections.api.requests import Problem
from connections.api.responses import schema as wire
from connections.api.responses.encoder import ResponsesEncoder, events_after
from sessions.running.ephemeral import Piece, ReasoningPiece, TextPiece


def new_encoder(*, background: bool = True) -> ResponsesEncoder:
    response = wire.Response(id="resp_1", created_at=0, model="m", background=background)
    return ResponsesEncoder(response, name="1")


def encoded(pieces: list[Piece]) -> list[wire.StreamEvent]:
    encoder = new_encoder()
    return [*encoder.begin(), *(event for piece in pieces for event in encoder.piece(piece))]


def text_in(events: Sequence[wire.StreamEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, wire.TextDelta))


PIECES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8)


@given(PIECES, st.integers(min_value=0, max_value=80))
def test_whoever_comes_back_is_told_the_rest_however_pieces_were_merged(
    parts: list[str], number: int
) -> None:
    """A reader saw some events of a stream of small pieces; the one that it follows now was merged otherwise."""
    whole = "".join(parts)
    seen = [
        event
        for event in encoded([ReasoningPiece("Hm."), *map(TextPiece, parts)])
        if event.sequence_number <= number
    ]
    known = seen[-1].sequence_number if seen else None
    rest = events_after(encoded([ReasoningPiece("Hm."), TextPiece(whole)]), known)
    assert text_in(seen) + text_in(rest) == whole


def test_numbers_of_a_stream_that_is_waited_for_have_no_hole() -> None:
    encoder = new_encoder(background=False)
    events = [*encoder.begin(), *encoder.piece(TextPiece("Some words.")), *encoder.piece(TextPiece(" More."))]
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_response_that_fails_has_what_was_written_so_far() -> None:
    encoder = new_encoder()
    encoder.piece(TextPiece("Hel"))
    last = encoder.fail(Problem(404, "The conversation was deleted.", code="not_found"))[-1]
    assert isinstance(last, wire.ResponseFailed)
    (item,) = last.response.output
    assert isinstance(item, wire.Message)
    assert (item.status, [part.text for part in item.content]) == ("incomplete", ["Hel"])
