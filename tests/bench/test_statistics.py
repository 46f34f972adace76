"""Observations become the right figures, in every lab."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.engine.load import Observed as Loaded
from tests.bench.engine.load import Stream, longest_gap_ms, steadiness, tokens_per_s
from tests.bench.load_generator import (
    Observed,
    Reply,
    Stop,
    figures,
)
from tests.bench.report import percentile
from tests.bench.translation import Screen, flicker


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_percentiles_lie_among_their_values_and_rise_with_their_share(
    values: list[float], one: float, other: float
) -> None:
    low, high = (percentile(values, share) or 0.0 for share in sorted((one, other)))
    assert min(values) <= low * (1 + 1e-9) <= high * (1 + 1e-9) ** 2 <= max(values) * (1 + 1e-9) ** 3


def test_percentiles_are_linear_between_neighbours() -> None:
    assert (percentile([4, 1, 3, 2], 0.5), percentile(range(101), 0.99), percentile([], 0.5)) == (
        2.5,
        99,
        None,
    )


def test_tokens_count_from_the_first_prompt_to_the_last_end_and_gaps_within_a_reply() -> None:
    found = figures(Observed(replies=(Reply(0, (0.25, 0.5), 3, 10), Reply(1, (1.75, 2, 2.25), 5, 30))))
    assert found["tokens/s, all clients"] == found["tokens per text"] == 8
    assert (found["first token p50, ms"], found["between texts p99, ms"]) == (500, 250)
    assert found["tokens of the shortest reply"] == 10


def test_a_cancel_has_both_its_answers_and_the_worst_count_of_steps() -> None:
    stops = (Stop(0.001, 0.004, 0), Stop(0.003, 0.006, 1), Stop(0.002, 0.005, None))
    found = figures(Observed(), Observed(stops=stops))
    assert found["cancel → cancelled p50, ms"] == pytest.approx(2)
    assert found["cancel → done p50, ms"] == pytest.approx(5)
    assert found["steps after a cancel, most"] == 1


def test_streams_are_steady_only_while_all_of_them_run() -> None:
    early, late = Stream(0.0, (1.0, 9.0, 10.0, 11.0, 12.0)), Stream(0.5, (9.0, 10.0, 11.0, 12.0))
    assert steadiness(Loaded((early, late))) == 1
    assert tokens_per_s(Loaded((early, late))) == 9 / 12
    assert (tokens_per_s(Loaded((Stream(0.0, ()),))), steadiness(Loaded((Stream(0.0, ()),)))) == (0, None)


def test_the_longest_gap_is_looked_for_while_the_intruder_waits() -> None:
    streams = (Stream(0.0, (1.0, 4.0, 4.5, 5.0)), Stream(0.0, (1.0, 4.25, 4.75)))
    assert longest_gap_ms(Loaded(streams, intruder=Stream(4.0, (5.0,)))) == pytest.approx(3250)
    assert longest_gap_ms(Loaded(streams[:1], intruder=Stream(2.0, ()))) is None


def test_flicker_is_as_its_paper_defines_it() -> None:
    screen = Screen()
    screen.show("Guten Tag", delay=1, elapsed=2)
    screen.show("Guten Morgen", delay=3, elapsed=4)
    seen = screen.emission_times(source_ms=10)
    assert (seen.text, seen.erased, seen.delays) == ("Guten Morgen", 3, [1] * 6 + [3] * 6)
    assert flicker([seen]) == 0.25
