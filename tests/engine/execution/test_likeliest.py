"""The largest score of each row is the one that torch finds."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.execution.sampler import likeliest

SCORES = st.sampled_from([-math.inf, -1.5, 0.0, 2.0, 2.0, 3.25, math.inf, math.nan])


@given(st.integers(1, 40).flatmap(lambda width: st.lists(st.lists(SCORES, min_size=width, max_size=width))))
def test_the_first_of_equal_scores_counts_and_a_row_that_is_no_number_shows_it(
    rows: list[list[float]],
) -> None:
    scores = torch.tensor(rows).reshape(len(rows), len(rows[0]) if rows else 1)
    best, places = likeliest(scores)
    wanted, first = scores.max(dim=-1, keepdim=True)
    assert torch.equal(best.nan_to_num(9.0), wanted.nan_to_num(9.0))
    assert torch.equal(places[~best.isnan()], first[~best.isnan()])


def test_scores_of_other_kinds_are_torch_s() -> None:
    scores = torch.tensor([[1.0, 4.0, 4.0], [2.0, 0.0, 1.0]], dtype=torch.bfloat16)
    assert [tensor.tolist() for tensor in likeliest(scores)] == [[[4.0], [2.0]], [[1], [0]]]
