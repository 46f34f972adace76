"""The draw of a CUDA device: the odds of the nucleus, whatever the neighbours do. By Triton's interpreter where none is."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import torch
from torch import Tensor

from engine.model.cuda import operators
from tests.engine.model.paged import DEVICE


def column(*values: float) -> Tensor:
    return torch.tensor(values, device=DEVICE).unsqueeze(1)


def drawn(scores: Tensor, top_p: Tensor | None, *seeds: int) -> list[int]:
    return operators.draw(scores.to(DEVICE), top_p, [Random(seed) for seed in seeds]).flatten().tolist()


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several to a row."""
    monkeypatch.setattr(operators, "BLOCK", 32)


@pytest.mark.parametrize("top_p", [0.3, 0.75, 0.999, torch.inf])
def test_tokens_come_as_often_as_their_share_of_the_nucleus(top_p: float) -> None:
    rows = 200
    probability = torch.rand(40, generator=torch.Generator().manual_seed(1)).pow(4)
    probability /= probability.sum()
    ranked = probability.sort(descending=True)
    before = ranked.values.cumsum(0) - ranked.values
    nucleus = ranked.indices[before < top_p]
    counts = Counter(drawn(probability.log().repeat(rows, 1), column(*[top_p] * rows), *range(rows)))
    assert set(counts) <= set(nucleus.tolist())
    share = probability[nucleus] / probability[nucleus].sum()
    deviation = (rows * share * (1 - share)).sqrt() + 1
    found = torch.tensor([counts[token] for token in nucleus.tolist()])
    assert ((found - rows * share).abs() <= 4 * deviation).all()


def test_a_row_draws_alone_what_it_draws_beside_others() -> None:
    scores = torch.randn(5, 50, generator=torch.Generator().manual_seed(2))
    top_p = column(0.2, 0.9, 1e-6, torch.inf, 0.5)
    together = drawn(scores, top_p, *range(5))
    assert together == [drawn(scores[row : row + 1], top_p[row : row + 1], row)[0] for row in range(5)]
    assert together[2] == scores[2].argmax()


def test_a_row_that_holds_no_number_gives_none_and_spoils_no_neighbour() -> None:
    scores = torch.zeros(5, 40)
    scores[0, 17] = torch.nan
    scores[1, 3] = torch.inf
    scores[2] = -torch.inf
    scores[3, :39] = -torch.inf
    assert drawn(scores, None, *range(5))[:4] == [-1, -1, -1, 39]
    assert drawn(scores, None, *range(5))[4] >= 0


def test_tokens_that_weigh_nothing_are_never_drawn() -> None:
    scores = torch.full((60, 40), -torch.inf)
    scores[:, [0, 20, 39]] = 0.0
    assert set(drawn(scores, column(*[0.9] * 60), *range(60))) == {0, 20, 39}
    scores[:, [0, 39]] = -1e4
    assert set(drawn(scores, column(*[0.9] * 60), *range(60))) == {20}


def test_each_row_takes_as_many_random_numbers_whatever_it_draws() -> None:
    states = []
    for top_p in (1e-6, 0.5, torch.inf):
        random = Random(3)
        operators.draw(torch.randn(1, 40).to(DEVICE), column(top_p), [random])
        states.append(random.getstate())
    assert states[0] == states[1] == states[2]
