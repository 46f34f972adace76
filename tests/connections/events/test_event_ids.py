"""Ids of events: what comes back in `Last-Event-ID` is whatever a client sends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from connections.api.account import UNKNOWN_POSITION, event_id, parse_position
from connections.protocol.frames import MAX_SEQ
from sessions.commands.resumption import ReaderPosition


@given(epoch=st.text("0123456789abcdef", min_size=1), seq=st.integers(0, MAX_SEQ))
def test_an_id_says_where_its_reader_is(epoch: str, seq: int) -> None:
    assert parse_position(event_id(epoch, seq)) == ReaderPosition(epoch, seq)


@given(shown=st.text())
def test_what_is_no_id_is_a_place_that_nothing_has(shown: str) -> None:
    found = parse_position(shown)
    assert found == UNKNOWN_POSITION or shown.startswith(f"{found.epoch}:")


@given(digits=st.text("0123456789", min_size=17, max_size=5000))
def test_no_number_is_too_long_to_read(digits: str) -> None:
    assert parse_position(f"epoch:{digits}").seq <= MAX_SEQ
