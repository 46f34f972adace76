"""Attention over pages on CPUs is what its queries get by hand, whatever the vectors, and leads out of no memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.execution.executor import Runner
from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams, Backend, Reference
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import BadTable, Cpu
from engine.step_layout import Span
from tests.engine.conftest import needs_kernels
from tests.engine.model.paged import Case, Shape, attended_by_hand, paged
from tests.engine.tiny_models import prompt, served

PLAIN = AttentionParams(0.3)
DTYPES = st.sampled_from((torch.float32, torch.bfloat16))
SEEDS = st.integers(0, 2**31)
TERMS = st.sampled_from(
    (
        PLAIN,
        AttentionParams(0.3, window=5),
        AttentionParams(0.3, window=100),
        AttentionParams(0.3, softcap=2.0),
        AttentionParams(0.3, 40, 5.0),
    )
)
SHAPES = st.sampled_from(
    (
        Shape(2, 2, 64),
        Shape(6, 2, 16),
        Shape(5, 1, 24, 40),
        Shape(3, 3, 5, 7),
        Shape(8, 2, 128),
        Shape(4, 2, 32, 96),
        Shape(1, 1, 80, 8),
    )
)
STEPS = st.tuples(
    st.lists(st.integers(1, 150), max_size=5),
    st.lists(st.tuples(st.integers(2, 300), st.integers(0, 200)), max_size=2),
).filter(any)
"""The lengths of replies, and how many queries of a prompt come behind how many tokens."""


def on_a_cpu(stored: LayerPages) -> LayerPages:
    """The tokens of a head side by side within a page, as the kernels read them."""
    layer = LayerPages.make(stored.keys[:1, 0].cpu(), stored.values[:1, 0].cpu(), *stored.keys.shape[:2])
    for to, store in zip(layer, stored, strict=True):
        to.copy_(store)
    return layer


def on_a_backend(backend: Backend, case: Case, terms: AttentionParams) -> Tensor:
    step = replace(
        case.step,
        tables=case.step.tables.cpu(),
        lengths=case.step.lengths.cpu(),
        position_ids=case.step.position_ids.cpu(),
    )
    return backend.attend(case.queries.cpu(), on_a_cpu(case.stored), step, terms)


def case_of(
    replies: Sequence[int],
    prompts: Sequence[tuple[int, int]],
    *,
    made: Shape = Shape(4, 2, 16),  # noqa: B008 - frozen
    page: int = 64,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    lengths = [*replies, *(rows + before for rows, before in prompts)]
    queries = [*(1 for _ in replies), *(rows for rows, _ in prompts)]
    return paged(made, lengths=lengths, queries=queries, page=page, dtype=dtype, seed=seed)


def assert_as_by_hand(got: Tensor, case: Case, terms: AttentionParams) -> None:
    """Weights of bfloat16 are rounded as well, before they are multiplied."""
    off = 1e-4 if got.dtype is torch.float32 else 2e-2
    torch.testing.assert_close(got.float(), attended_by_hand(case, terms).cpu(), rtol=off, atol=off)


@needs_kernels
@pytest.mark.usefixtures("vectors", "threads")
@settings(max_examples=30)
@given(SEEDS, DTYPES, SHAPES, st.sampled_from((1, 5, 16, 32, 64, 256)), TERMS, STEPS)
def test_replies_and_prompts_attend_as_by_hand(  # noqa: PLR0917 - one for each dimension
    seed: int,
    dtype: torch.dtype,
    made: Shape,
    page: int,
    terms: AttentionParams,
    steps: tuple[list[int], list[tuple[int, int]]],
) -> None:
    case = case_of(*steps, made=made, page=page, dtype=dtype, seed=seed)
    assert_as_by_hand(on_a_backend(Cpu(), case, terms), case, terms)


@settings(max_examples=30)
@given(SEEDS, SHAPES, st.sampled_from((1, 5, 64)), TERMS, STEPS)
def test_torchs_operations_attend_as_by_hand(
    seed: int, made: Shape, page: int, terms: AttentionParams, steps: tuple[list[int], list[tuple[int, int]]]
) -> None:
    case = case_of(*steps, made=made, page=page, seed=seed)
    case.step.tables[case.step.tables == 2**30] = 0  # as `lay_out` fills rows up
    assert_as_by_hand(on_a_backend(Reference(), case, terms), case, terms)


@needs_kernels
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_scores_of_any_size_are_weighed(scale: float) -> None:
    case = case_of([99, 3], [(120, 30)])
    case.queries.mul_(scale)
    assert_as_by_hand(on_a_backend(Cpu(), case, PLAIN), case, PLAIN)


def alone(case: Case, terms: AttentionParams, rows: slice) -> Tensor:
    """What some queries of the only prompt get, as a chunk of their own."""
    start, stop = case.step.spans[0]
    queries = case.queries.cpu()[rows]
    begin = range(start, stop)[rows][0]
    span = (begin, begin + len(queries))
    return cpu_kernels.attend(queries, on_a_cpu(case.stored), case.step.tables[:1].cpu(), [span], terms)


@needs_kernels
@pytest.mark.usefixtures("vectors", "threads")
@settings(max_examples=30)
@given(SEEDS, DTYPES, SHAPES, TERMS, st.integers(4, 230), st.integers(0, 200), st.data())
def test_where_a_prompt_is_cut_changes_nothing(  # noqa: PLR0917 - one for each dimension
    seed: int,
    dtype: torch.dtype,
    made: Shape,
    terms: AttentionParams,
    rows: int,
    before: int,
    data: st.DataObject,
) -> None:
    case = case_of([], [(rows, before)], made=made, page=32, dtype=dtype, seed=seed)
    cut = data.draw(st.integers(2, rows - 2))  # a single query attends as a reply's does
    parts = [alone(case, terms, slice(0, cut)), alone(case, terms, slice(cut, rows))]
    assert torch.equal(torch.cat(parts), alone(case, terms, slice(0, rows)))


@needs_kernels
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_no_number_stays_with_its_own_query(dtype: torch.dtype, poison: float) -> None:
    case = case_of([50, 60, 70], [(120, 30)], page=32, dtype=dtype)
    before = on_a_backend(Cpu(), case, PLAIN)
    case.queries[[1, 73], 1] = poison
    after = on_a_backend(Cpu(), case, PLAIN)
    changed = (after != before).any(dim=2)  # what is no number differs from itself
    assert changed.nonzero().tolist() == [[1, 1], [73, 1]]
    assert after[[1, 73], 1].isnan().all()


def layer_of(pages: int, page: int, kv_heads: int = 2, size: int = 8) -> LayerPages:
    """A layer of random keys and values."""
    torch.manual_seed(1)
    layer = LayerPages.make(*(torch.randn(1, kv_heads, width) for width in (size, 8)), pages, page)
    for store in layer:
        store.copy_(torch.randn(store.shape))
    return layer


BAD: dict[str, tuple[list[tuple[int, int]], list[list[int]]]] = {
    "a page behind the last": ([(9, 10)], [[1, 4]]),
    "a page before the first": ([(9, 10)], [[1, -1]]),
    "more tokens than the table has": ([(16, 17)], [[1, 2]]),
    "a chunk behind the table": ([(15, 17)], [[1, 2]]),
    "no tokens": ([(8, 8)], [[1, 2]]),
    "before the first position": ([(-1, 1)], [[1, 2]]),
    "a position that no number holds in 32 bits": ([(2**31, 2**31 + 1)], [[1, 2]]),
    "more queries than rows": ([(8, 11)], [[1, 2]]),
    "fewer tables than spans": ([(9, 10)], []),
}


@needs_kernels
@pytest.mark.parametrize("case", BAD)
def test_a_table_that_leads_out_of_the_pages_is_refused(case: str) -> None:
    layer, (spans, tables) = layer_of(4, 8), BAD[case]
    numbers = torch.tensor(tables, dtype=torch.int32).view(len(tables), 2)
    with pytest.raises(BadTable):
        cpu_kernels.attend(torch.randn(2, 4, 8), layer, numbers, spans, PLAIN)


@needs_kernels
def test_tables_and_pages_of_another_kind_are_refused() -> None:
    layer, tables = layer_of(4, 8), torch.tensor([[1, 2]], dtype=torch.int32)
    wrong: list[tuple[LayerPages, Tensor]] = [
        (layer, tables.long()),
        (layer, torch.tensor([[1, 0, 2, 0]], dtype=torch.int32)[:, ::2]),
        (LayerPages(layer.keys.contiguous(), layer.values), tables),
        (LayerPages(layer.keys, layer.values[:3]), tables),
        (layer_of(4, 8, kv_heads=3), tables),
        (layer_of(4, 8, size=6), tables),
    ]
    for one in wrong:
        with pytest.raises(BadTable):
            cpu_kernels.attend(torch.randn(1, 4, 8), *one, [(9, 10)], PLAIN)


@needs_kernels
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "deepseek v3"])
def test_the_attention_of_a_reply_is_the_kernel_s_whatever_the_model(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend, calls = cpu_kernels.attend, []

    def counted(*args: Any) -> Tensor:
        calls.append(args)
        return attend(*args)

    monkeypatch.setattr(cpu_kernels, "attend", counted)
    run = Runner(served(family).module, pages=2, page_size=16)
    run.run([Span(0, 0, prompt(5), samples=False, pages=[1])])
    calls.clear()
    run.run([Span(0, 5, prompt(6)[5:], samples=True, pages=[1])])
    assert len(calls) == len(run.cache.layers)
