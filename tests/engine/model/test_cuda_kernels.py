"""The kernels' numbers, against attention spelled out in float32: by Triton's interpreter where no CUDA device is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams
from engine.model.cuda import operators
from engine.model.cuda.operators import Cuda
from tests.engine.model.paged import DEVICE, Case, Shape, attended_by_hand, paged

GROUPED = Shape(heads=4, kv_heads=2, size=16)
SHAPES = {
    "grouped": GROUPED,
    "one for all": Shape(heads=7, kv_heads=1, size=24),
    "each its own": Shape(heads=3, kv_heads=3, size=32),
    "values of their own size": Shape(heads=2, kv_heads=2, size=24, value_size=16),
}
TERMS = {
    "plain": AttentionParams(0.3),
    "window": AttentionParams(0.3, window=9),
    "softcap": AttentionParams(0.3, softcap=2.0),
    "all": AttentionParams(0.3, window=20, softcap=2.0),
}
LENGTHS = (1, 15, 16, 17, 64, 70)


def attend(case: Case, terms: AttentionParams, *, processors: int = 2) -> Tensor:
    return Cuda(processors=processors).attend(case.queries, case.stored, case.step, terms)


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
@pytest.mark.parametrize("made", SHAPES.values(), ids=SHAPES)
def test_a_step_of_replies_and_prompts_attends_as_by_hand(made: Shape, terms: AttentionParams) -> None:
    case = paged(made, lengths=(*LENGTHS, 40, 33), queries=(*(1 for _ in LENGTHS), 40, 5), page=16)
    out = attend(case, terms)
    torch.testing.assert_close(out, attended_by_hand(case, terms), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("page", [1, 16, 256])
@pytest.mark.parametrize("capacity", [0, 700])
def test_pages_of_any_size_and_contexts_of_several_partitions(page: int, capacity: int) -> None:
    lengths, queries = (300, 1, 257, 256, 530, 300), (1, 1, 1, 1, 1, 30)
    case = paged(GROUPED, lengths=lengths, queries=queries, page=page, spare=capacity // page)
    for terms in (AttentionParams(0.3), AttentionParams(0.3, window=280)):
        out = attend(case, terms)
        torch.testing.assert_close(out, attended_by_hand(case, terms), rtol=1e-4, atol=1e-5)


def test_partitions_of_a_long_context_are_larger_and_those_of_its_neighbour_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operators, "MOST_PARTITIONS", 2)
    case = paged(GROUPED, lengths=(300, 1000), queries=(1, 1), page=16)
    terms = AttentionParams(0.3)
    out = attend(case, terms)
    torch.testing.assert_close(out, attended_by_hand(case, terms), rtol=1e-4, atol=1e-5)
    step = replace(case.step, decode_rows=1, tables=case.step.tables[:1, :19], lengths=case.step.lengths[:1])
    alone = attend(replace(case, step=step, queries=case.queries[:1]), terms)
    assert torch.equal(alone[0], out[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 80, 128, 256])
def test_halves_and_the_sizes_of_real_heads(dtype: torch.dtype, size: int) -> None:
    made = Shape(heads=4, kv_heads=1, size=size)
    case = paged(made, lengths=(70, 3, 64, 65), queries=(1, 1, 1, 40), page=32, dtype=dtype)
    terms = AttentionParams(size**-0.5)
    out = attend(case, terms)
    assert out.dtype is dtype
    torch.testing.assert_close(out.float(), attended_by_hand(case, terms), rtol=2e-2, atol=2e-2)


def test_a_row_of_nobody_gets_zeros_and_stores_nothing() -> None:
    case = paged(GROUPED, lengths=(5, 0, 3, 0), queries=(1, 1, 1, 1), page=16)
    out = attend(case, AttentionParams(0.3))
    assert not out[[1, 3]].any()
    torch.testing.assert_close(out, attended_by_hand(case, AttentionParams(0.3)), rtol=1e-4, atol=1e-5)
    before = [one.clone() for one in case.stored]
    made = torch.ones(4, 2, 16, device=DEVICE)
    nowhere = replace(case.step, pages=torch.full_like(case.step.pages, -1))
    Cuda(processors=2).store(case.stored, nowhere, made, made)
    for now, then in zip(case.stored, before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)


def test_a_reply_has_the_same_bits_alone_and_beside_others() -> None:
    """Whoever else is in the step, and over however many programs its partitions are spread."""
    case = paged(GROUPED, lengths=(30, 600, 1000, 5), queries=(1, 1, 1, 1), page=16)
    together = attend(case, AttentionParams(0.3), processors=1)
    for processors in (1, 2, 100):
        again = attend(case, AttentionParams(0.3), processors=processors)
        assert torch.equal(together, again)
    step = case.step
    for row in range(4):
        alone = replace(
            step, decode_rows=1, tables=step.tables[row : row + 1], lengths=step.lengths[row : row + 1]
        )
        out = attend(replace(case, step=alone, queries=case.queries[row : row + 1]), AttentionParams(0.3))
        assert torch.equal(out[0], together[row])


def test_keys_and_values_are_stored_where_they_are_read() -> None:
    """Strided as they come out of one product of queries, keys and values."""
    made = Shape(heads=4, kv_heads=2, size=16, value_size=24)
    case = paged(made, lengths=(20, 7, 40), queries=(1, 1, 33), page=16)
    starts = case.step.query_starts.tolist()
    new = [
        torch.cat([part[len(part) - (starts[n + 1] - starts[n]) :] for n, part in enumerate(parts)])
        for parts in (case.keys, case.values)
    ]
    joined = torch.cat([torch.zeros(35, 4, 16), new[0]], dim=1).to(DEVICE)
    values = torch.cat([torch.zeros(35, 3, 24), new[1]], dim=1).to(DEVICE)
    emptied = [torch.where(torch.rand_like(one) < 2, torch.nan, one) for one in case.stored]
    Cuda(processors=2).store(LayerPages(*emptied), case.step, joined[:, 4:], values[:, 3:])
    for now, then in zip(emptied, case.stored, strict=True):
        pages, offsets = case.step.pages.long(), case.step.offsets.long()
        assert torch.equal(now[pages, offsets], then[pages, offsets])
        assert int(now.isfinite().sum()) == 35 * now.shape[2] * now.shape[3]


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_mixture_of_lengths_attends_as_by_hand(data: st.DataObject) -> None:
    page = data.draw(st.sampled_from([1, 3, 16, 64]))
    singles = data.draw(st.lists(st.integers(0, 90), max_size=4))
    prompts = data.draw(st.lists(st.tuples(st.integers(2, 40), st.integers(0, 60)), max_size=2))
    assume(singles or prompts)
    lengths = (*singles, *(new + before for new, before in prompts))
    queries = (*(1 for _ in singles), *(new for new, _ in prompts))
    terms = AttentionParams(
        0.3, data.draw(st.none() | st.integers(1, 70)), data.draw(st.none() | st.just(1.5))
    )
    case = paged(GROUPED, lengths=lengths, queries=queries, page=page, seed=data.draw(st.integers(0, 9)))
    out = attend(case, terms)
    torch.testing.assert_close(out, attended_by_hand(case, terms), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "broken",
    [
        lambda case: replace(case, queries=case.queries[..., :8]),
        lambda case: replace(case, queries=case.queries[:, :3]),
        lambda case: replace(case, stored=LayerPages(case.stored.keys, case.stored.values[:, :8])),
        lambda case: replace(case, stored=LayerPages(case.stored.keys[..., ::2], case.stored.values)),
        lambda case: replace(case, queries=case.queries.to("meta")),
    ],
    ids=["another size", "heads that can't be shared", "short pages", "gaps", "another device"],
)
def test_what_does_not_fit_together_is_refused_before_the_kernel(broken: Callable[[Case], Case]) -> None:
    case = paged(GROUPED, lengths=(5, 30), queries=(1, 20), page=16)
    with pytest.raises(ValueError, match=r"do not fit|are on"):
        attend(broken(case), AttentionParams(0.3))
