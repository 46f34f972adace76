"""The observations of a load become the right figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.engine.records import Observed, Stream
from tests.bench.engine.statistics import longest_gap_ms, steadiness, tokens_per_s

moments = st.lists(st.floats(0.001, 1e3), min_size=2).map(lambda found: tuple(sorted(found)))


def test_tokens_are_counted_from_the_first_prompt_to_the_last_token() -> None:
    observed = Observed((Stream(0.0, (1.0, 2.0)), Stream(0.5, (1.5, 2.0, 2.5))))
    assert tokens_per_s(observed) == 5 / 2.5


def test_where_nothing_came_there_is_no_speed_and_no_gap() -> None:
    nothing = Observed((Stream(0.0, ()),))
    assert tokens_per_s(nothing) == 0
    assert steadiness(nothing) is None
    assert longest_gap_ms(nothing) is None


def test_even_tokens_are_perfectly_steady_and_what_is_before_the_last_beginning_does_not_count() -> None:
    early = Stream(0.0, (1.0, 9.0, 10.0, 11.0, 12.0))
    late = Stream(0.0, (9.0, 10.0, 11.0, 12.0))
    assert steadiness(Observed((early, late))) == 1


@given(st.lists(moments, min_size=1))
def test_the_highest_gaps_are_no_shorter_than_the_middle_ones(streams: list[tuple[float, ...]]) -> None:
    found = steadiness(Observed(tuple(Stream(0.0, arrivals) for arrivals in streams)))
    assert found is None or found >= 1


def test_the_longest_gap_is_looked_for_while_the_intruder_waits() -> None:
    streams = (Stream(0.0, (1.0, 4.0, 4.5, 5.0)), Stream(0.0, (1.0, 4.25, 4.75)))
    observed = Observed(streams, intruder=Stream(4.0, (5.0,)))
    assert longest_gap_ms(observed) == pytest.approx(3250)


def test_a_stream_that_says_nothing_until_the_intruder_begins_has_waited_too() -> None:
    assert longest_gap_ms(Observed((Stream(0.0, (1.0,)),), intruder=Stream(2.0, (6.0,)))) == 5000


def test_an_intruder_without_a_token_tells_nothing() -> None:
    assert longest_gap_ms(Observed((Stream(0.0, (1.0,)),), intruder=Stream(2.0, ()))) is None
