"""Lags and flicker are as their papers define them."""

from __future__ import annotations

import pytest

from tests.bench.translation_lag import Screen, Work, flicker, laal


def test_who_is_always_two_words_behind_lags_two_words() -> None:
    assert laal([3000, 4000, 5000, 5000], source_ms=5000, reference=5) == pytest.approx(3000)


def test_longer_output_earns_nothing() -> None:
    assert (
        laal([1000] * 9 + [2000], source_ms=2000, reference=2)
        > laal([1000, 2000], source_ms=2000, reference=2) - 1000
    )
    assert laal([2000], source_ms=2000, reference=1) == 2000


def test_a_screen_counts_what_is_taken_back() -> None:
    screen = Screen()
    screen.show("Guten Tag", delay=1, elapsed=2)
    screen.show("Guten Morgen", delay=3, elapsed=4)
    seen = screen.emission_times(source_ms=10, work=Work(5))
    assert (seen.text, seen.erased) == ("Guten Morgen", 3)
    assert seen.delays == (1,) * 6 + (3,) * 6
    assert flicker([seen]) == 0.25
