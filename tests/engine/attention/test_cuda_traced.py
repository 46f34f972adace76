"""Attention over pages on a CUDA device that is not there: devices agree, nothing waits, launches stay as few."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import pytest
import torch

from engine.attention.cuda import operators
from engine.attention.cuda.attention import PROMPTS, PagedAttention, Way
from engine.attention.cuda.terms import PagedLayer, PagedStep, Terms
from engine.attention.cuda.varlen import HAS_VARLEN, Varlen
from tests.engine.fake_cuda import CUDA, Launches, fake_cuda

HEADS, KV_HEADS, SIZE, PAGE = 32, 8, 128, 256
TERMS = Terms(SIZE**-0.5)
MIXED = (200, 8000, 1, 512, 3000, 77, 256, 257)
WAYS: dict[str, Way | None] = {"triton": None} | ({"varlen": Varlen()} if HAS_VARLEN else {})


def step_of(queries: Sequence[int], lengths: Sequence[int]) -> PagedStep:
    single = next((row for row, count in enumerate(queries) if count != 1), len(queries))

    def sent(numbers: Sequence[int]) -> torch.Tensor:
        return torch.empty(len(numbers), dtype=torch.int32, device=CUDA)  # a number alone would be a constant

    return PagedStep(
        decode_rows=single,
        longest_prompt=max(queries[single:], default=0),
        tables=torch.zeros(len(queries), 32, dtype=torch.int32, device=CUDA),
        query_starts=sent([0, *accumulate(queries)]),
        lengths=sent(lengths),
        key_starts=sent([0, *accumulate(lengths)]),
        pages=sent([0] * sum(queries)),
        offsets=sent([0] * sum(queries)),
    )


def traced(queries: Sequence[int], lengths: Sequence[int], way: Way | None = None) -> Launches:
    """One layer's store and attention; by `way`, if any, for all that it can be chosen for."""
    with fake_cuda():
        attention, step = PagedAttention(processors=132), step_of(queries, lengths)
        if way is not None:
            attention._chosen = {(TERMS, rows): way for rows in (PROMPTS, step.decode_rows)}
        pages = torch.zeros(500, PAGE, KV_HEADS, SIZE, dtype=torch.bfloat16, device=CUDA)
        layer = PagedLayer(pages, torch.zeros_like(pages), TERMS)
        made = torch.zeros(sum(queries), HEADS + 2 * KV_HEADS, SIZE, dtype=torch.bfloat16, device=CUDA)
        with Launches() as launches:
            operators.store(made[:, HEADS : HEADS + KV_HEADS], made[:, HEADS + KV_HEADS :], layer, step)
            out = attention.attend(made[:, :HEADS], layer, step)
        assert out.shape == (sum(queries), HEADS, SIZE)
        assert out.device == CUDA
    return launches


@pytest.mark.parametrize("rows", [1, 8, 64, 256])
@pytest.mark.parametrize("way", WAYS)
def test_replies_cost_as_many_launches_however_many_and_long_they_are(way: str, rows: int) -> None:
    equal = traced([1] * rows, [512] * rows, WAYS[way])
    mixed = traced([1] * rows, [MIXED[row % len(MIXED)] for row in range(rows)], WAYS[way])
    assert equal.found == mixed.found
    assert mixed.total == {"triton": 3, "varlen": 2}[way]
    assert not mixed.sent


@pytest.mark.parametrize("way", WAYS)
def test_chunks_of_prompts_beside_replies_cost_one_launch_more(way: str) -> None:
    mixed = traced([*[1] * 64, 500, 12, 16], [*MIXED * 8, 4000, 12, 16], WAYS[way])
    assert mixed.total == {"triton": 4, "varlen": 3}[way]
    alone = traced([500, 12], [4000, 12], WAYS[way])
    assert alone.total == 2
    assert not alone.sent


def test_a_tensor_left_on_the_host_is_noticed() -> None:
    with fake_cuda():
        step = step_of([1, 1], [5, 6])
        pages = torch.zeros(9, PAGE, KV_HEADS, SIZE, dtype=torch.bfloat16, device=CUDA)
        layer = PagedLayer(pages, torch.zeros_like(pages, device="cpu"), TERMS)
        queries = torch.zeros(2, HEADS, SIZE, dtype=torch.bfloat16, device=CUDA)
        with pytest.raises(ValueError, match="are on"):
            PagedAttention(processors=132).attend(queries, layer, step)


@pytest.mark.parametrize(
    "waits", [lambda one: one.max().item(), lambda one: one[one > 0], lambda one: one.tolist()]
)
def test_what_would_wait_for_the_device_is_noticed(waits: object) -> None:
    with fake_cuda(), pytest.raises(Exception, match="aten") as caught:
        waits(torch.zeros(3, device=CUDA))  # type: ignore[operator]
    assert "Dynamic" in type(caught.value).__name__ or "DataDependent" in type(caught.value).__name__
