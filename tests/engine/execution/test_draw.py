"""Each way to draw a token, in torch, in C and in Triton: the odds of the nucleus, whatever a row's neighbors do.

Where no CUDA device is, Triton's interpreter runs its kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf, nan
from random import Random

import pytest
import torch
from torch import Tensor

from engine.execution import sampler
from engine.model.cpu import kernels
from engine.model.cuda import operators
from tests.engine.conftest import needs_kernels
from tests.engine.model.paged import DEVICE

Draw = Callable[[Tensor, Tensor | None, Sequence[Random]], Tensor]


def by_torch(scores: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> Tensor:
    return sampler.draw_weighted(scores.softmax(-1), top_p, randoms)


def by_kernel(scores: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> Tensor:
    return kernels.draw(scores.clone(), top_p, randoms)


def by_triton(scores: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> Tensor:
    limits = None if top_p is None else top_p.to(DEVICE)
    return operators.draw(scores.to(DEVICE), limits, randoms)


@pytest.fixture(
    params=[
        by_torch,
        pytest.param(by_kernel, marks=needs_kernels),
        pytest.param(by_triton, marks=pytest.mark.long),
    ]
)
def draw(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Draw:
    monkeypatch.setattr(operators, "BLOCK", 32)  # several to a row
    drawn: Draw = request.param
    return drawn


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def tokens_of(draw: Draw, scores: Tensor, *top_p: float, seed: int = 0) -> list[int]:
    """Draw a token for each row, by random numbers of its own; -1: none."""
    limits = column(*(top_p * len(scores) if len(top_p) == 1 else top_p)) if top_p else None
    return draw(scores, limits, [Random(seed + row) for row in range(len(scores))]).flatten().tolist()


def sizes(draw: Draw) -> tuple[int, ...]:
    """Return lengths about those that it works on at a time."""
    return (1, 31, 33, 40) if draw is by_triton else (1, 63, 64, 65, 4096, 4097, 9001)


@pytest.mark.parametrize("top_p", [0.3, 0.9, inf])
def test_nothing_outside_of_the_nucleus_is_drawn(draw: Draw, top_p: float) -> None:
    for size in sizes(draw):
        scores = 3 * torch.randn(20, size, generator=torch.Generator().manual_seed(size))
        weights = scores.double().softmax(dim=-1)
        for row, token in enumerate(tokens_of(draw, scores, top_p)):
            likelier = weights[row][weights[row] > weights[row, token]].sum()
            assert likelier < min(top_p, 1) + 1e-6


@pytest.mark.parametrize("top_p", [0.3, 0.75, 0.999, inf])
def test_tokens_come_as_often_as_their_share_of_the_nucleus(draw: Draw, top_p: float) -> None:
    rows, size = 200, sizes(draw)[-1]
    places = torch.linspace(0, size - 1, 40).long()
    probability = torch.rand(40, generator=torch.Generator().manual_seed(1)).pow(4)
    probability /= probability.sum()
    scores = torch.full((1, size), -inf)
    scores[0, places] = probability.log()
    ranked = probability.sort(descending=True)
    nucleus = ranked.indices[ranked.values.cumsum(0) - ranked.values < top_p]
    counts = Counter(tokens_of(draw, scores.repeat(rows, 1), top_p))
    assert set(counts) <= set(places[nucleus].tolist())
    share = probability[nucleus] / probability[nucleus].sum()
    found = torch.tensor([counts[token] for token in places[nucleus].tolist()])
    deviation = (rows * share * (1 - share)).sqrt() + 1
    assert ((found - rows * share).abs() <= 4 * deviation).all()


def test_a_row_draws_and_takes_the_same_numbers_alone_and_beside_others(draw: Draw) -> None:
    scores = 3 * torch.randn(5, sizes(draw)[-1], generator=torch.Generator().manual_seed(2))
    top_p = column(0.2, 0.9, 1e-6, inf, 0.5)
    together = [Random(row) for row in range(5)]
    drawn = draw(scores, top_p, together).flatten().tolist()
    for row in range(5):
        alone = Random(row)
        assert draw(scores[row : row + 1], top_p[row : row + 1], [alone]).item() == drawn[row]
        assert alone.getstate() == together[row].getstate()
    assert drawn[2] == scores[2].argmax()


@pytest.mark.parametrize("bad", [nan, inf])
@pytest.mark.parametrize("top_p", [0.9, inf])
def test_a_row_that_holds_no_number_gives_none_and_spoils_no_neighbor(
    draw: Draw, bad: float, top_p: float
) -> None:
    size = sizes(draw)[-1]
    scores = torch.randn(3, size, generator=torch.Generator().manual_seed(1))
    whole = tokens_of(draw, scores, top_p)
    for place in (0, size // 2, size - 1):
        spoiled = scores.clone()
        spoiled[1, place] = bad
        assert tokens_of(draw, spoiled, top_p) == [whole[0], -1, whole[2]]


def test_only_tokens_that_weigh_something_are_drawn(draw: Draw) -> None:
    scores = torch.full((60, 40), -inf)
    assert set(tokens_of(draw, scores)) == {-1}
    scores[:, [0, 20, 39]] = 0.0
    assert set(tokens_of(draw, scores, 0.9)) == set(tokens_of(draw, scores)) == {0, 20, 39}
    scores[:, [0, 39]] = -1e4
    assert set(tokens_of(draw, scores, 0.9)) == {20}


@needs_kernels
def test_scores_between_others_are_read_as_they_lie() -> None:
    scores = torch.randn(4, 9001, generator=torch.Generator().manual_seed(3))
    assert tokens_of(by_kernel, scores[:, :4500]) == tokens_of(by_kernel, scores[:, :4500].contiguous())


@pytest.mark.parametrize(("level", "token"), [(0.0, 1), (1 - 2**-53, 3)])
def test_the_outermost_levels_never_give_a_token_without_mass(level: float, token: int) -> None:
    class Level(Random):
        def random(self) -> float:
            return level

    assert sampler.draw_weighted(torch.tensor([[0.0, 0.3, 0.3, 0.2, 0.0]]), None, [Level()]).item() == token


def test_a_ranked_row_is_cut_behind_the_token_that_fills_its_nucleus() -> None:
    weights = torch.tensor([[0.5, 0.3, 0.2]]).repeat(3, 1)
    kept = sampler.cut_ranked(weights, column(0.01, 0.6, inf)) > 0
    assert kept.sum(dim=-1).tolist() == [1, 2, 3]
