"""What is told of a response, and what of that comes behind a number."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from connections.responses.answers import wire
from connections.responses.answers.telling import Telling, behind
from sessions.running.waiting_pieces import Piece, Text, Thought


def telling(*, background: bool = True) -> Telling:
    response = wire.Response(id="resp_1", created_at=0, model="m", background=background)
    return Telling(response, name="1")


def told(pieces: list[Piece]) -> list[wire.StreamEvent]:
    teller = telling()
    return [*teller.begin(), *(event for piece in pieces for event in teller.piece(piece))]


def text_in(events: Sequence[wire.StreamEvent]) -> str:
    return "".join(event.delta for event in events if isinstance(event, wire.TextDelta))


PIECES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8)


@given(PIECES, st.integers(min_value=0, max_value=80))
def test_whoever_comes_back_is_told_the_rest_however_pieces_were_merged(
    parts: list[str], number: int
) -> None:
    """A reader saw some events of a stream of small pieces; the one that it follows now was merged otherwise."""
    whole = "".join(parts)
    seen = [event for event in told([Thought("Hm."), *map(Text, parts)]) if event.sequence_number <= number]
    known = seen[-1].sequence_number if seen else None
    rest = behind(told([Thought("Hm."), Text(whole)]), known)
    assert text_in(seen) + text_in(rest) == whole


def test_numbers_of_a_stream_that_is_waited_for_have_no_hole() -> None:
    teller = telling(background=False)
    events = [*teller.begin(), *teller.piece(Text("Some words.")), *teller.piece(Text(" More."))]
    assert [event.sequence_number for event in events] == list(range(len(events)))
