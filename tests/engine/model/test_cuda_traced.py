"""Attention over pages on a CUDA device that is not there: devices agree, nothing waits, launches stay as few."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams
from engine.model.cuda.operators import Cuda
from engine.step_layout import Span, StepLayout, lay_out
from tests.engine.fake_cuda import CUDA, Launches, fake_cuda

HEADS, KV_HEADS, SIZE, PAGE = 32, 8, 128, 256
TERMS = AttentionParams(SIZE**-0.5)
MIXED = (200, 8000, 1, 512, 3000, 77, 256, 257)


def step_of(queries: Sequence[int], lengths: Sequence[int]) -> StepLayout:
    single = next((row for row, count in enumerate(queries) if count != 1), len(queries))
    requested = enumerate(zip(queries, lengths, strict=True))
    spans = [Span(row, stop - count, [0] * count, True, [0] * 32) for row, (count, stop) in requested]
    step = lay_out(spans, page_size=PAGE, device=CUDA, most_pages=32)
    assert step.decode_rows == single
    return step


def traced(queries: Sequence[int], lengths: Sequence[int]) -> Launches:
    """One layer's store and attention."""
    with fake_cuda():
        backend, step = Cuda(processors=132), step_of(queries, lengths)
        rows = step.input_ids.shape[1]
        made = torch.zeros(rows, HEADS + 2 * KV_HEADS, SIZE, dtype=torch.bfloat16, device=CUDA)
        keys, values = made[:, HEADS : HEADS + KV_HEADS], made[:, HEADS + KV_HEADS :]
        layer = LayerPages.make(keys, values, 500, PAGE)
        with Launches() as launches:
            backend.store(layer, step, keys, values)
            out = backend.attend(made[:, :HEADS], layer, step, TERMS)
        assert out.shape == (rows, HEADS, SIZE)
        assert out.device == CUDA
    return launches


@pytest.mark.parametrize("rows", [1, 8, 64, 256])
def test_replies_cost_as_many_launches_however_many_and_long_they_are(rows: int) -> None:
    equal = traced([1] * rows, [512] * rows)
    mixed = traced([1] * rows, [MIXED[row % len(MIXED)] for row in range(rows)])
    assert equal.found == mixed.found
    assert mixed.total == 3
    assert not mixed.sent


def test_chunks_of_prompts_beside_replies_cost_one_launch_more() -> None:
    mixed = traced([*[1] * 64, 500, 12, 16], [*MIXED * 8, 4000, 12, 16])
    assert mixed.total == 4
    alone = traced([500, 12], [4000, 12])
    assert alone.total == 2
    assert not alone.sent


def test_a_tensor_left_on_the_host_is_noticed() -> None:
    with fake_cuda():
        queries = torch.zeros(2, HEADS, SIZE, dtype=torch.bfloat16, device=CUDA)
        layer = LayerPages.make(queries[:, :KV_HEADS], queries[:, :KV_HEADS], 9, PAGE)
        left = layer._replace(values=torch.zeros_like(layer.values, device="cpu"))
        with pytest.raises(ValueError, match="are on"):
            Cuda(processors=132).attend(queries, left, step_of([1, 1], [5, 6]), TERMS)


@pytest.mark.parametrize(
    "waits", [lambda one: one.max().item(), lambda one: one[one > 0], lambda one: one.tolist()]
)
def test_what_would_wait_for_the_device_is_noticed(waits: object) -> None:
    with fake_cuda(), pytest.raises(Exception, match="aten") as caught:
        waits(torch.zeros(3, device=CUDA))  # type: ignore[operator]
    assert "Dynamic" in type(caught.value).__name__ or "DataDependent" in type(caught.value).__name__
