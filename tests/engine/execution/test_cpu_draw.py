"""The kernel that draws on CPUs: each token as often as the nucleus says, and nothing from rows that hold no number."""

from __future__ import annotations

from math import inf, nan
from random import Random

import pytest
import torch
from torch import Tensor

from engine.model.cpu import kernels

pytestmark = pytest.mark.skipif(bool(kernels.trouble()), reason="no kernels were compiled")

SIZES = (1, 63, 64, 65, 4096, 4097, 9001)
"""Tokens of a vocabulary: about the lengths that the kernel works on at a time."""


def drawn(scores: Tensor, top_p: float = inf, seed: int = 7) -> list[int]:
    rows = len(scores)
    limits = None if top_p == inf else torch.full((rows, 1), top_p)
    tokens = kernels.draw(scores.clone(), limits, [Random(seed + row) for row in range(rows)])
    return tokens.flatten().tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("top_p", [0.3, 0.9, inf])
def test_only_the_nucleus_is_drawn_from(size: int, top_p: float) -> None:
    scores = 3 * torch.randn(40, size, generator=torch.Generator().manual_seed(size))
    weights = scores.double().softmax(dim=-1)
    for row, token in enumerate(drawn(scores, top_p)):
        likelier = weights[row][weights[row] > weights[row, token]].sum()
        assert likelier < min(top_p, 1) + 1e-6


def test_each_token_of_the_nucleus_comes_as_often_as_it_weighs() -> None:
    rows = 20_000
    scores = torch.full((1, 5000), -inf)
    places = [0, 63, 4095, 4096, 4999]
    scores[0, places] = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04]).log()
    counts = torch.bincount(torch.tensor(drawn(scores.repeat(rows, 1), 0.89)), minlength=5000) / rows
    assert counts[[4096, 4999]].tolist() == [0, 0]
    torch.testing.assert_close(counts[places[:3]], torch.tensor([4 / 9, 3 / 9, 2 / 9]), atol=0.015, rtol=0)
    counts = torch.bincount(torch.tensor(drawn(scores.repeat(rows, 1))), minlength=5000) / rows
    torch.testing.assert_close(counts[places], torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04]), atol=0.015, rtol=0)


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("place", [0, 4095, 4100, 8999])
def test_a_row_that_holds_no_number_gives_none_and_spoils_no_neighbor(bad: float, place: int) -> None:
    scores = torch.randn(3, 9000, generator=torch.Generator().manual_seed(1))
    whole = drawn(scores, 0.9)
    scores[1, place] = bad
    assert drawn(scores, 0.9) == [whole[0], -1, whole[2]]


def test_a_row_without_any_token_left_gives_none() -> None:
    assert drawn(torch.full((2, 70), -inf)) == [-1, -1]


def test_a_row_is_drawn_alike_alone_and_beside_others() -> None:
    scores = 3 * torch.randn(8, 9001, generator=torch.Generator().manual_seed(2))
    alone = [drawn(scores[row : row + 1], 0.8, seed=7 + row)[0] for row in range(8)]
    assert drawn(scores, 0.8) == alone


def test_scores_between_others_are_read_as_they_lie() -> None:
    scores = torch.randn(4, 9001, generator=torch.Generator().manual_seed(3))
    assert drawn(scores[:, :4500]) == drawn(scores[:, :4500].contiguous())
