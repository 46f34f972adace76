"""The kernels for CPUs say what torch's operations say, and what is no number stays with its own row."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from engine.attention import cpu_kernels
from engine.attention.cpu_kernels import NoKernels, silu_product
from engine.cache.slot_batch import Span
from engine.execution.runner import Runner
from tests.engine.tiny_models import WINDOW, prompt, served

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


def complaint(source: str) -> str:
    """What the compiler has to say of a source."""
    if shutil.which(COMPILER) is None:
        return f"there is no {COMPILER}"
    command = [COMPILER, *FLAGS, "-I", str(SOURCE.parent), "-x", "c", "-c", "-", "-o", os.devnull]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).stderr


needs_a_compiler = pytest.mark.skipif(bool(complaint(GCC_WITH_HEADERS)), reason=complaint(GCC_WITH_HEADERS))
needs_kernels = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"], autouse=True)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def close(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Compare with what was computed in float32 of the same elements."""
    exact = dtype is torch.float32
    assert got.dtype is dtype
    torch.testing.assert_close(
        got.float(), expected, rtol=1e-5 if exact else 1e-2, atol=1e-5 if exact else 1e-2, equal_nan=True
    )


def one_slot(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention as torch has it, of one query, (heads, size), to one slot, (KV heads, positions, size), in float32."""
    mixed = functional.scaled_dot_product_attention(
        query[:, None].float(), keys.float(), values.float(), scale=0.3, enable_gqa=True
    )
    return mixed[:, 0]


@needs_kernels
@given(
    DTYPES, SEEDS, st.integers(1, 5), st.integers(1, 3), st.integers(1, 4),
    st.sampled_from((2, 6, 8, 24, 64, 72, 80, 128)), st.integers(1, 150),
)  # fmt: skip
def test_attention_reads_each_row_s_own_slot_up_to_its_position(  # noqa: PLR0917 - one for each dimension
    dtype: torch.dtype, seed: int, rows: int, kv_heads: int, sharing: int, size: int, tokens: int
) -> None:
    torch.manual_seed(seed)
    keys, values = torch.randn(2, 7, kv_heads, tokens, size).to(dtype)
    query = torch.randn(rows, kv_heads * sharing + 2, size).to(dtype)[:, 1:-1]
    slots, positions = torch.randperm(7)[:rows], torch.randint(0, tokens, (rows,))
    for slot, position in zip(slots, positions, strict=True):
        keys[slot, :, position + 1 :] = torch.nan
        values[slot, :, position + 1 :] = torch.nan
    got = cpu_kernels.attend(query, keys, values, (slots, positions), 0.3)
    expected = [
        one_slot(asked, keys[slot, :, : position + 1], values[slot, :, : position + 1])
        for asked, slot, position in zip(query, slots, positions, strict=True)
    ]
    close(got, torch.stack(expected), dtype)


@needs_kernels
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_attention_holds_for_scores_of_any_size(scale: float) -> None:
    torch.manual_seed(1)
    keys, values = torch.randn(2, 1, 2, 100, 16)
    query = torch.randn(1, 2, 16) * scale
    got = cpu_kernels.attend(query, keys, values, (torch.tensor([0]), torch.tensor([99])), 0.3)
    close(got[0], one_slot(query[0], keys[0], values[0]), torch.float32)


@needs_kernels
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_what_is_no_number_stays_in_its_own_row_and_is_seen_there(poison: float) -> None:
    torch.manual_seed(1)
    keys, values = torch.randn(2, 3, 2, 10, 8)
    query, slots, positions = torch.randn(3, 4, 8), torch.arange(3), torch.tensor([9, 5, 7])
    before = cpu_kernels.attend(query, keys, values, (slots, positions), 0.3)
    keys[1, :, 2] = poison
    after = cpu_kernels.attend(query, keys, values, (slots, positions), 0.3)
    assert torch.equal(after[[0, 2]], before[[0, 2]])
    assert after[1].isnan().all()
    rows = torch.randn(3, 32, dtype=torch.bfloat16)
    rows[1, 3] = torch.nan
    for made in (cpu_kernels.rms_norm(rows, torch.ones(32, dtype=torch.bfloat16), 1e-5), silu_product(rows)):
        assert made.isnan().any(dim=1).tolist() == [False, True, False]


@needs_kernels
@given(
    DTYPES, SEEDS, st.integers(1, 40), st.integers(1, 3), st.integers(1, 4), st.sampled_from((2, 8, 80, 128))
)
def test_queries_and_keys_turn_and_keys_and_values_are_stored_where_they_belong(  # noqa: PLR0917 - as above
    dtype: torch.dtype, seed: int, rows: int, kv_heads: int, sharing: int, size: int
) -> None:
    torch.manual_seed(seed)
    heads = kv_heads * sharing
    projected = torch.randn(rows, heads + 2 * kv_heads, size).to(dtype)
    both, values = projected[:, : heads + kv_heads], projected[:, heads + kv_heads :]
    cosine, sine = torch.randn(2, rows, 1, size).to(dtype)
    places = torch.randperm(5 * 9)[:rows]
    slots, positions = places // 9 - 1, places % 9  # slot -1: a row of nobody
    stores = torch.zeros(4, kv_heads, 9, size, dtype=dtype), torch.zeros(4, kv_heads, 9, size, dtype=dtype)
    got = cpu_kernels.rotate_and_store(both, values, (cosine, sine), (slots, positions), stores)
    turned = both.float() * cosine.float() + both.float().roll(size // 2, -1) * sine.float()
    close(got, turned[:, :heads], dtype)
    expected = torch.zeros(2, 5, kv_heads, 9, size)
    for row, (slot, position) in enumerate(zip(slots, positions, strict=True)):
        expected[0, slot, :, position], expected[1, slot, :, position] = turned[row, heads:], values[row]
    close(stores[0], expected[0, :4], dtype)
    close(stores[1], expected[1, :4], dtype)


@needs_kernels
@given(DTYPES, SEEDS, st.integers(1, 70), st.sampled_from((1, 7, 24, 256, 1000)), st.floats(0.01, 100))
def test_norms_and_gates_are_torch_s(
    dtype: torch.dtype, seed: int, rows: int, size: int, spread: float
) -> None:
    torch.manual_seed(seed)
    given_rows, weight = (torch.randn(rows, 2 * size) * spread).to(dtype), torch.randn(2 * size).to(dtype)
    normed = functional.rms_norm(given_rows.float(), (2 * size,), weight.float(), 1e-5)
    close(cpu_kernels.rms_norm(given_rows, weight, 1e-5), normed, dtype)
    gate, up = given_rows.float().chunk(2, dim=-1)
    close(silu_product(given_rows), functional.silu(gate) * up, dtype)


@needs_kernels
def test_numbers_are_rounded_to_the_nearest_bfloat16() -> None:
    torch.manual_seed(1)
    gates, ups = torch.full((4, 512), 193, dtype=torch.bfloat16), torch.randn(4, 512).bfloat16()
    # silu leaves so high a gate as it is; the products lie between two bfloat16.
    assert torch.equal(silu_product(torch.cat((gates, ups), dim=1)), (193 * ups.float()).bfloat16())


@needs_a_compiler
def test_where_there_is_a_compiler_there_are_kernels() -> None:
    assert cpu_kernels.trouble() == ""


@needs_a_compiler
def test_the_compiler_has_nothing_to_say() -> None:
    assert complaint(SOURCE.read_text()) == ""


@needs_kernels
@pytest.mark.parametrize(("family", "calls_a_layer"), [("llama", 1), ("gpt2", 1), ("gemma2", 0)])
def test_plain_causal_attention_is_the_kernel_s_whatever_the_model(
    family: str, calls_a_layer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend, calls = cpu_kernels.attend, []

    def counted(*args: Any) -> Tensor:
        calls.append(args)
        return attend(*args)

    monkeypatch.setattr(cpu_kernels, "attend", counted)
    run = Runner(served(family).module, slots=2, tokens=WINDOW)
    run.run([Span(0, 0, prompt(5), samples=False)])
    assert calls == []
    run.run([Span(0, 5, prompt(6)[5:], samples=True)])
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
    with pytest.raises(NoKernels, match="older source"):
        cpu_kernels.load()


def test_without_kernels_nobody_may_call_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_kernels, "_library", lambda: NoKernels("none"))
    assert cpu_kernels.trouble() == "none"
    with pytest.raises(NoKernels):
        silu_product(torch.ones(1, 2))
