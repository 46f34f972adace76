"""The kernels for CPUs say what torch's operations say, and what is no number stays with its own row."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from engine.execution.executor import Runner
from engine.kv_cache import LayerPages
from engine.model.attention import AttentionParams, Reference
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.kernels import BadTable, Cpu, NoKernels
from engine.step_layout import Span, lay_out
from tests.engine.tiny_models import prompt, served

pytestmark = pytest.mark.usefixtures("threads")

COMPILER = (sysconfig.get_config_var("CC") or "cc").partition(" ")[0]
DTYPES = st.sampled_from((torch.float32, torch.bfloat16))
SEEDS = st.integers(0, 2**31)

FLAGS = ("-O3", "-fopenmp", "-std=gnu11", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")


GCC_WITH_HEADERS = """
#include <math.h>
#ifdef __clang__
#error its OpenMP is not the one that torch brings
#endif
"""


SOURCE = Path(cpu_kernels.__file__).with_suffix(".c")


@cache
def complaint(source: str) -> str:
    """What the compiler has to say of a source. It is asked once, however many threads compute."""
    if shutil.which(COMPILER) is None:
        return f"there is no {COMPILER}"
    command = [
        COMPILER,
        *FLAGS,
        "-I",
        str(SOURCE.parent),
        "-I",
        str(SOURCE.parents[1] / "model"),
        "-x",
        "c",
        "-c",
        "-",
        "-o",
        os.devnull,
    ]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).stderr


needs_a_compiler = pytest.mark.skipif(bool(complaint(GCC_WITH_HEADERS)), reason=complaint(GCC_WITH_HEADERS))
needs_kernels = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())


def close(got: Tensor, expected: Tensor, dtype: torch.dtype, rounded: float = 1e-2) -> None:
    """Compare with what was computed in float32 of the same elements."""
    off = 1e-5 if dtype is torch.float32 else rounded
    assert got.dtype is dtype
    torch.testing.assert_close(got.float(), expected, rtol=off, atol=off, equal_nan=True)


def paged(  # noqa: PLR0917 - one for each dimension
    pages: int, page: int, kv_heads: int, size: int, value_size: int, dtype: torch.dtype
) -> LayerPages:
    """A layer of random keys and values."""
    rows = torch.randn(1, kv_heads, size).to(dtype), torch.randn(1, kv_heads, value_size).to(dtype)
    layer = LayerPages.make(*rows, pages, page)
    for store in layer:
        store.copy_(torch.randn(store.shape))
    return layer


def exact(layer: LayerPages) -> LayerPages:
    return LayerPages(layer.keys.float(), layer.values.float())


def poison_the_rest(layer: LayerPages, spans: list[Span]) -> None:
    """What lies in no request's context is no number."""
    page = layer.keys.shape[1]
    for store in layer:
        seen = torch.zeros(store.shape[:2], dtype=torch.bool)
        for span in spans:
            for place in range(span.stop):
                seen[span.pages[place // page], place % page] = True
        store.masked_fill_(~seen[:, :, None, None], torch.nan)


TERMS = st.sampled_from(
    (
        AttentionParams(0.3),
        AttentionParams(0.3, window=5),
        AttentionParams(0.3, chunk=7),
        AttentionParams(0.3, softcap=2.0),
        AttentionParams(0.3, 40, 64, 5.0),
    )
)


@needs_kernels
@given(
    DTYPES, SEEDS, st.lists(st.integers(1, 150), min_size=1, max_size=5), st.integers(1, 3), st.integers(1, 4),
    st.sampled_from(((2, 2), (6, 6), (24, 16), (64, 64), (80, 8), (128, 128))),
    st.sampled_from((1, 5, 16, 32, 64, 256)), TERMS, st.lists(st.integers(1, 40), max_size=2),
)  # fmt: skip
def test_attention_over_pages_is_the_reference_s(  # noqa: PLR0917 - one for each dimension
    dtype: torch.dtype, seed: int, lengths: list[int], kv_heads: int, sharing: int, sizes: tuple[int, int],
    page: int, terms: AttentionParams, prompts: list[int],
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    needed = [-(-length // page) for length in lengths] + [-(-60 // page)] * len(prompts)
    order = torch.randperm(sum(needed) + 1).tolist()
    tables = [[order.pop() for _ in range(count)] for count in needed]
    spans = [Span(0, n - 1, [1], samples=True, pages=t) for n, t in zip(lengths, tables, strict=False)]
    spans += [
        Span(0, 60 - count, [1] * count, samples=True, pages=table)
        for count, table in zip(prompts, tables[len(lengths) :], strict=True)
    ]
    layer = paged(sum(needed) + 1, page, kv_heads, *sizes, dtype)
    poison_the_rest(layer, spans)
    step = lay_out(spans, page_size=page, device=torch.device("cpu"))
    query = torch.randn(step.input_ids.shape[1], kv_heads * sharing + 2, sizes[0]).to(dtype)[:, 1:-1]
    expected = Reference().attend(query.float(), exact(layer), step, terms)
    got = Cpu().attend(query, layer, step, terms)
    # Weights are rounded before they are multiplied in pairs: those of prompts, and of replies with whole vectors.
    replies, prompts_of = slice(step.decode_rows), slice(step.decode_rows, step.rows)
    close(got[replies], expected[replies], dtype, rounded=1e-2 if sizes[0] % 32 or sizes[1] % 32 else 2e-2)
    close(got[prompts_of], expected[prompts_of], dtype, rounded=2e-2)


@needs_kernels
@given(SEEDS, st.integers(1, 70), st.sampled_from(((32, 32), (64, 96), (128, 64))), TERMS)
def test_a_reply_s_attention_is_the_same_with_pairs_and_without(
    seed: int, length: int, sizes: tuple[int, int], terms: AttentionParams
) -> None:
    torch.manual_seed(seed)
    layer = paged(5, 32, 2, *sizes, torch.bfloat16)
    query, tables = torch.randn(1, 6, sizes[0]).bfloat16(), torch.tensor([[4, 0, 2]], dtype=torch.int32)
    made = [cpu_kernels.attend(query, layer, tables, [(length - 1, length)], terms)]
    try:
        cpu_kernels.library().midstream_vectors(2)
        made.append(cpu_kernels.attend(query, layer, tables, [(length - 1, length)], terms))
    finally:
        cpu_kernels.library().midstream_vectors(-1)
    close(made[0], made[1].float(), torch.bfloat16, rounded=2e-2)


@needs_kernels
@given(SEEDS, st.integers(1, 4), st.sampled_from((1, 8, 64)))
def test_the_reference_is_torch_s_own_attention(seed: int, kv_heads: int, page: int) -> None:
    torch.manual_seed(seed)
    layer, table = paged(70, page, kv_heads, 16, 16, torch.float32), torch.randperm(70).tolist()
    step = lay_out(
        [Span(0, 20, [1] * 49, samples=True, pages=table)], page_size=page, device=torch.device("cpu")
    )
    query = torch.randn(64, kv_heads * 2, 16)
    keys, values = (store[table].flatten(0, 1)[:69].transpose(0, 1) for store in layer)
    seen = torch.ones(49, 69, dtype=torch.bool).tril(20)
    expected = functional.scaled_dot_product_attention(
        query[:49].transpose(0, 1), keys, values, attn_mask=seen, scale=0.3, enable_gqa=True
    )
    close(
        Reference().attend(query, layer, step, AttentionParams(0.3))[:49],
        expected.transpose(0, 1),
        torch.float32,
    )


@needs_kernels
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_attention_holds_for_scores_of_any_size(scale: float) -> None:
    torch.manual_seed(1)
    layer, spans = paged(2, 64, 2, 16, 16, torch.float32), [Span(0, 99, [1], samples=True, pages=[1, 0])]
    query = torch.randn(1, 2, 16) * scale
    step = lay_out(spans, page_size=64, device=torch.device("cpu"))
    got = cpu_kernels.attend(query, layer, step.tables, step.spans, AttentionParams(0.3))
    close(got, Reference().attend(query, layer, step, AttentionParams(0.3)), torch.float32)


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
    layer, (spans, tables) = paged(4, 8, 2, 8, 8, torch.float32), BAD[case]
    numbers = torch.tensor(tables, dtype=torch.int32).view(len(tables), 2)
    with pytest.raises(BadTable):
        cpu_kernels.attend(torch.randn(2, 4, 8), layer, numbers, spans, AttentionParams(0.3))


@needs_kernels
def test_tables_and_pages_of_another_kind_are_refused() -> None:
    layer, tables = paged(4, 8, 2, 8, 8, torch.float32), torch.tensor([[1, 2]], dtype=torch.int32)
    wrong: list[tuple[LayerPages, Tensor]] = [
        (layer, tables.long()),
        (layer, torch.tensor([[1, 0, 2, 0]], dtype=torch.int32)[:, ::2]),
        (LayerPages(layer.keys.contiguous(), layer.values), tables),
        (LayerPages(layer.keys, layer.values[:3]), tables),
        (paged(4, 8, 3, 8, 8, torch.float32), tables),
        (paged(4, 8, 2, 6, 8, torch.float32), tables),
    ]
    for one in wrong:
        with pytest.raises(BadTable):
            cpu_kernels.attend(torch.randn(1, 4, 8), *one, [(9, 10)], AttentionParams(0.3))


@needs_kernels
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_no_number_stays_in_its_own_row_and_is_seen_there(poison: float) -> None:
    torch.manual_seed(1)
    layer = paged(3, 10, 2, 8, 8, torch.float32)
    query, tables = torch.randn(3, 4, 8), torch.tensor([[0], [1], [2]], dtype=torch.int32)
    spans = [(9, 10), (5, 6), (7, 8)]
    before = cpu_kernels.attend(query, layer, tables, spans, AttentionParams(0.3))
    layer.keys[1, 2] = poison
    after = cpu_kernels.attend(query, layer, tables, spans, AttentionParams(0.3))
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert after[1].isnan().all()


@needs_a_compiler
def test_where_there_is_a_compiler_there_are_kernels() -> None:
    assert cpu_kernels.trouble() == ""


@needs_a_compiler
@pytest.mark.parametrize("source", sorted(SOURCE.parent.glob("*.c")), ids=lambda source: source.name)
def test_the_compiler_has_nothing_to_say(source: Path) -> None:
    assert complaint(source.read_text()) == ""


@needs_kernels
@pytest.mark.parametrize(
    ("family", "calls_a_layer"), [("llama", 1), ("gpt2", 1), ("gemma2", 1), ("deepseek v3", 1)]
)
def test_the_attention_of_a_reply_is_the_kernel_s_whatever_the_model(
    family: str, calls_a_layer: int, monkeypatch: pytest.MonkeyPatch
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
    assert len(calls) == calls_a_layer * len(run.cache.layers)


@needs_kernels
def test_other_tensors_are_left_to_torch() -> None:
    assert not cpu_kernels.serve(torch.ones(1, dtype=torch.float16))
    assert not cpu_kernels.serve(torch.ones(1, device="meta"))
    assert not cpu_kernels.serve(torch.ones(1), torch.ones(1, dtype=torch.bfloat16))
    assert not cpu_kernels.serve(torch.ones(1), torch.ones(2, 2).t())
    assert cpu_kernels.serve(torch.ones(1), torch.ones(2, 2))


def test_what_can_t_be_loaded_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoKernels, match="not compiled"):
        cpu_kernels.load("engine._no_such_kernels")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    (tmp_path / f"_of_another_machine{suffix}").write_bytes(b"\x7fELF of another kind")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NoKernels, match="_of_another_machine"):
        cpu_kernels.load("_of_another_machine")


@needs_kernels
def test_what_an_older_source_gave_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "VERSION", cpu_kernels.VERSION + 1)
    with pytest.raises(NoKernels, match="another version of the source"):
        cpu_kernels.load()


def test_without_kernels_nobody_may_call_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "_library", lambda: NoKernels("none"))
    assert cpu_kernels.trouble() == "none"
    with pytest.raises(NoKernels):
        cpu_kernels.library()
