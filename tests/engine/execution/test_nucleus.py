"""Nuclei are drawn from exactly, by each row's own random numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from math import inf, lcm
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.execution import sampler as nucleus


class Levels(Random):
    """Gives the numbers that are named, and then no more."""

    def __init__(self, levels: tuple[float, ...]) -> None:
        self._levels = iter(levels)

    def random(self) -> float:
        return next(self._levels)


def draw(weights: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> list[int | None]:
    tokens: list[int] = nucleus.draw_weighted(weights, top_p, randoms).flatten().tolist()
    return [None if token < 0 else token for token in tokens]


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def every_combination(weights: list[int]) -> list[tuple[float, ...]]:
    """The middles of so many equal parts of [0, 1) that each token's share is whole parts, in every round."""
    borders = sorted(set(weights))
    parts = lcm(*(sum(w for w in weights if w >= border) for border in borders))
    middles = [(part + 0.5) / parts for part in range(parts)]
    return list(product(middles, repeat=len(borders)))


@pytest.mark.parametrize(
    ("weights", "top_p", "allowed"),
    [
        ([3, 2, 1], 0.45, [3]),
        ([1, 3, 2], 0.60, [3, 2]),
        ([2, 1, 3], 0.90, [3, 2, 1]),
        ([1, 2, 1, 2], 0.30, [2, 2]),
        ([1, 2, 1, 2], 0.70, [2, 2, 1, 1]),
        ([5, 0, 1, 0], 0.99, [5, 1]),
        ([1, 1, 1], 0.01, [1, 1, 1]),
    ],
)
def test_over_all_levels_each_token_has_exactly_its_share_of_the_nucleus(
    weights: list[int], top_p: float, allowed: list[int]
) -> None:
    levels = every_combination([weight for weight in weights if weight])
    rows = (torch.tensor(weights) / sum(weights)).repeat(len(levels), 1)
    drawn = Counter(draw(rows, torch.full((len(levels), 1), top_p), [Levels(one) for one in levels]))
    for token, weight in enumerate(weights):
        share = Fraction(weight, sum(allowed)) if weight in allowed else Fraction(0)
        assert Fraction(drawn[token], len(levels)) == share


def test_without_a_nucleus_the_whole_row_is_drawn_from() -> None:
    weights, middles = torch.tensor([0.5, 0.25, 0.25]).repeat(4, 1), [0.125, 0.375, 0.625, 0.875]
    for top_p in (None, torch.full((4, 1), inf)):
        randoms = [Levels((level,)) for level in middles]
        assert draw(weights.clone(), top_p, randoms) == [0, 0, 1, 2]


@pytest.mark.parametrize(("level", "token"), [(0.0, 1), (1 - 2**-53, 3)])
def test_the_outermost_levels_never_give_a_token_without_mass(level: float, token: int) -> None:
    weights = torch.tensor([[0.0, 0.3, 0.3, 0.2, 0.0]])
    assert draw(weights, None, [Levels((level,))]) == [token]


PROBABILITIES = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40).map(
    lambda scores: torch.tensor([scores]).softmax(-1)
)


@settings(max_examples=100, deadline=None)
@given(PROBABILITIES, st.floats(0.001, 0.999), st.integers(0, 1000))
def test_what_is_likelier_than_the_drawn_token_has_less_mass_than_the_nucleus(
    probability: Tensor, top_p: float, seed: int
) -> None:
    (token,) = draw(probability.clone(), column(top_p), [Random(seed)])
    assert token is not None
    likelier = probability[probability > probability[0, token]]
    assert likelier.double().sum() < top_p + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0.05, 1.0), min_size=1, max_size=8), st.integers(0, 1000))
def test_a_row_draws_and_takes_the_same_numbers_alone_and_among_others(
    top_ps: list[float], seed: int
) -> None:
    scores = torch.randn(len(top_ps), 50, generator=torch.Generator().manual_seed(seed))
    together = [Random(seed + row) for row in range(len(top_ps))]
    drawn = draw(scores.softmax(-1), column(*top_ps), together)
    for row, top_p in enumerate(top_ps):
        alone = Random(seed + row)
        assert draw(scores[row : row + 1].softmax(-1), column(top_p), [alone]) == [drawn[row]]
        assert alone.getstate() == together[row].getstate()


@pytest.mark.parametrize("top_p", [None, column(0.5, 0.5, 0.5)])
def test_a_row_with_nan_gives_none_and_its_neighbours_a_token(top_p: Tensor | None) -> None:
    weights = torch.tensor([[0.9, 0.1], [torch.nan, 0.1], [0.1, 0.9]])
    drawn = draw(weights, top_p, [Levels((0.5,)) for _ in range(3)])
    assert drawn == [0, None, 1]


def test_a_ranked_row_is_cut_behind_the_token_that_fills_its_nucleus() -> None:
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]])
    kept = nucleus.cut_ranked(weights, column(0.01, 0.6, inf)) > 0
    assert kept.sum(dim=-1).tolist() == [1, 2, 3]
