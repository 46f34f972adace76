"""Observations become the right figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.records import Observed, Reply, Silence, Stop
from tests.bench.statistics import Figures, figures, medians, percentile

NOTHING = Observed()
seconds = st.floats(0, 1e6)


@given(st.lists(seconds, min_size=1), st.floats(0, 1))
def test_a_percentile_lies_among_its_values(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found is not None
    assert min(values) <= found * (1 + 1e-9)
    assert found <= max(values) * (1 + 1e-9)


@given(st.lists(seconds, min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_percentiles_rise_with_their_share(values: list[float], one: float, other: float) -> None:
    low, high = (percentile(values, share) for share in sorted((one, other)))
    assert low is not None
    assert high is not None
    assert low <= high * (1 + 1e-9)


def test_percentiles_are_linear_between_neighbours() -> None:
    assert percentile([4, 1, 3, 2], 0.5) == 2.5
    assert percentile(range(101), 0.99) == 99
    assert percentile([7], 0.99) == 7


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 0.5) is None


def test_tokens_are_counted_from_the_first_prompt_to_the_last_end() -> None:
    replies = (Reply(0, (1, 2), 3, 10), Reply(1, (2, 3, 4), 5, 30))
    shown = figures(Observed(replies=replies), NOTHING, NOTHING)
    assert shown.tokens_per_s == 40 / 5
    assert shown.tokens_per_text == 40 / 5
    assert shown.tokens_per_reply == 10


def test_gaps_are_taken_within_a_reply_and_first_tokens_from_its_prompt() -> None:
    replies = (Reply(0, (0.25, 0.5), 1, 2), Reply(100, (100.75, 101), 102, 2))
    shown = figures(Observed(replies=replies), NOTHING, NOTHING)
    assert shown.gap_p50_ms == shown.gap_p99_ms == 250
    assert shown.first_token_p50_ms == 500


def test_a_cancel_has_both_its_answers_and_the_worst_count_of_steps() -> None:
    stops = (Stop(0.001, 0.004, 0), Stop(0.003, 0.006, 1), Stop(0.002, 0.005, None))
    shown = figures(NOTHING, Observed(stops=stops), Observed(silence=Silence(0.5, 0.25)))
    assert shown.cancelled_p50_ms == pytest.approx(2)
    assert shown.done_p50_ms == pytest.approx(5)
    assert shown.steps_after == 1
    assert (shown.silent_ms, shown.silent_cpu_ms) == (500, 250)


def test_what_was_not_observed_has_no_figure() -> None:
    assert figures(NOTHING, NOTHING, NOTHING) == Figures()


def test_medians_are_taken_over_the_turns_that_know_a_figure() -> None:
    turns = [Figures(tokens_per_s=1), Figures(tokens_per_s=9, silent_ms=4), Figures(tokens_per_s=2)]
    assert medians(turns) == Figures(tokens_per_s=2, silent_ms=4)
