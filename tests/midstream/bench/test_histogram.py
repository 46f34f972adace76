"""Durations in a fixed amount of memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.bench.histogram import LONGEST_S, Histogram

durations = st.floats(min_value=2e-5, max_value=3000)
shares = st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0])


@given(st.lists(durations, min_size=1), shares)
def test_a_percentile_is_wrong_by_one_per_cent_at_most(values: list[float], share: float) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    true = sorted(values)[max(1, math.ceil(share * len(values))) - 1]
    assert histogram.percentile(share) == pytest.approx(true, rel=0.0101)


def test_of_nothing_there_is_no_percentile() -> None:
    assert (Histogram().percentile(0.5), Histogram().mean) == (None, None)


def test_it_takes_no_more_memory_the_more_it_counts() -> None:
    histogram = Histogram()
    ranges = len(histogram._counts)
    for value in (0.0, 1e-9, LONGEST_S, 1e9):
        histogram.add(value)
    assert len(histogram._counts) == ranges
    assert (histogram.count, histogram.least, histogram.most) == (4, 0.0, 1e9)
