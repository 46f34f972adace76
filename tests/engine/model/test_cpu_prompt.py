"""A prompt's chunk gets what its queries get by hand, whatever the vectors, and the same wherever the prompt is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import Cpu
from tests.engine.model.paged import Case, Shape, attended_by_hand, paged

pytestmark = [
    pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble()),
    pytest.mark.usefixtures("threads"),
]

DTYPES = st.sampled_from((torch.float32, torch.bfloat16))
SEEDS = st.integers(0, 2**31)
PAGES = st.sampled_from((1, 5, 32, 64, 256))
TERMS = st.sampled_from(
    (
        AttentionParams(0.3),
        AttentionParams(0.3, window=5),
        AttentionParams(0.3, window=100),
        AttentionParams(0.3, chunk=70),
        AttentionParams(0.3, softcap=2.0),
    )
)
SHAPES = st.sampled_from(
    (
        Shape(2, 2, 64),
        Shape(6, 2, 16),
        Shape(5, 1, 24, 40),
        Shape(3, 3, 5, 7),
        Shape(8, 2, 128),
        Shape(1, 1, 80, 8),
    )
)


def on_a_cpu(stored: LayerPages) -> LayerPages:
    """The tokens of a head side by side within a page, as the kernels read them."""
    layer = LayerPages.make(stored.keys[:1, 0].cpu(), stored.values[:1, 0].cpu(), *stored.keys.shape[:2])
    for to, store in zip(layer, stored, strict=True):
        to.copy_(store)
    return layer


def alone(case: Case, terms: AttentionParams, rows: slice) -> Tensor:
    """What some queries of the only request get, as a chunk of their own."""
    layer, (start, stop) = on_a_cpu(case.stored), case.step.spans[0]
    queries = case.queries.cpu()[rows]
    begin = range(start, stop)[rows][0]
    span = (begin, begin + len(queries))
    return cpu_kernels.attend(queries, layer, case.step.tables[:1].cpu(), [span], terms)


@pytest.mark.usefixtures("vectors")
@settings(max_examples=30)
@given(
    SEEDS, DTYPES, SHAPES, PAGES, TERMS,
    st.lists(st.tuples(st.integers(2, 230), st.integers(0, 200)), min_size=1, max_size=2),
)  # fmt: skip
def test_prompts_attend_as_by_hand(  # noqa: PLR0917 - one for each dimension
    seed: int,
    dtype: torch.dtype,
    shape: Shape,
    page: int,
    terms: AttentionParams,
    prompts: Sequence[tuple[int, int]],
) -> None:
    lengths, queries = [rows + before for rows, before in prompts], [rows for rows, _ in prompts]
    case = paged(shape, lengths=lengths, queries=queries, page=page, dtype=dtype, seed=seed)
    step = replace(case.step, tables=case.step.tables.cpu(), lengths=case.step.lengths.cpu())
    got = Cpu().attend(case.queries.cpu(), on_a_cpu(case.stored), step, terms)
    # Of bfloat16 the weights are rounded as well, before they are multiplied.
    off = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got.float(), attended_by_hand(case, terms).cpu(), rtol=off, atol=off)


@pytest.mark.usefixtures("vectors")
@settings(max_examples=30)
@given(SEEDS, DTYPES, SHAPES, TERMS, st.integers(4, 230), st.integers(0, 200), st.data())
def test_where_a_prompt_is_cut_changes_nothing(  # noqa: PLR0917 - one for each dimension
    seed: int,
    dtype: torch.dtype,
    shape: Shape,
    terms: AttentionParams,
    rows: int,
    before: int,
    data: st.DataObject,
) -> None:
    case = paged(shape, lengths=[rows + before], queries=[rows], page=32, dtype=dtype, seed=seed)
    cut = data.draw(st.integers(2, rows - 2))  # a single query attends as a reply's does
    parts = [alone(case, terms, slice(0, cut)), alone(case, terms, slice(cut, rows))]
    assert torch.equal(torch.cat(parts), alone(case, terms, slice(0, rows)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_no_number_stays_with_its_own_query(dtype: torch.dtype, poison: float) -> None:
    case = paged(Shape(4, 2, 16), lengths=[150], queries=[120], page=32, dtype=dtype)
    before = alone(case, AttentionParams(0.3), slice(0, 120))
    case.queries[70, 1] = poison
    after = alone(case, AttentionParams(0.3), slice(0, 120))
    changed = (after != before).any(dim=2)  # what is no number differs from itself
    assert changed.nonzero().tolist() == [[70, 1]]
    assert after[70, 1].isnan().all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scores_of_any_size_are_weighed(scale: float) -> None:
    case = paged(Shape(2, 2, 16), lengths=[150], queries=[120], page=64)
    case.queries.mul_(scale)
    expected = attended_by_hand(case, AttentionParams(0.3)).cpu()
    torch.testing.assert_close(
        alone(case, AttentionParams(0.3), slice(0, 120)), expected, rtol=1e-4, atol=1e-4
    )
