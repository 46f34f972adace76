"""A decode step in one call says what the layers say, whatever the pages; what leads out of memory is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.kv_cache import LayerPages
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.decoder import CpuModel, InvalidStep, is_known
from engine.model.cpu.kernels import quantize
from engine.model.devices import is_out_of_memory
from engine.step_layout import Span
from tests.engine.families import VOCABULARY
from tests.engine.model.decoding import MADE, SIZE, by_itself, decoder, made_pages
from tests.engine.tiny_models import prompt

pytestmark = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())


def spans_of(tokens: list[int], positions: list[int], tables: list[list[int]]) -> list[Span]:
    rows = zip(tokens, positions, tables, strict=True)
    return [
        Span(row, place, [token], samples=True, pages=pages) for row, (token, place, pages) in enumerate(rows)
    ]


def read_one_by_one(
    model: CpuModel, texts: list[list[int]], tables: list[list[int]], held: list[LayerPages]
) -> Tensor:
    """The logits behind the last token of each text, all of equal length."""
    for place in range(len(texts[0])):
        logits = model.decode(spans_of([text[place] for text in texts], [place] * len(texts), tables), held)
    return logits


@pytest.mark.parametrize("family", MADE)
@pytest.mark.parametrize("page", [1, 3, 16, 64])
@pytest.mark.parametrize("threads", [1, 2])
def test_tokens_read_one_by_one_are_what_the_module_says_of_the_whole(
    family: str, page: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    texts = [prompt(19, salt) for salt in range(5)]
    fused = decoder(family)
    needed = -(-19 // page)
    shuffled = torch.randperm(5 * needed + 3, generator=torch.Generator().manual_seed(1))[: 5 * needed]
    tables = shuffled.view(5, needed).tolist()
    logits = read_one_by_one(CpuModel(fused), texts, tables, made_pages(fused, 5 * needed + 3, page))
    torch.set_num_threads(1)
    for row, text in zip(logits, texts, strict=True):
        torch.testing.assert_close(row, by_itself(family, text), atol=1e-4, rtol=1e-4)


@settings(max_examples=30)
@given(st.integers(1, 14), st.integers(1, 9), st.integers(0, 2**31))
def test_a_row_is_the_same_alone_and_beside_others(rows: int, page: int, seed: int) -> None:
    fused = decoder()
    model, needed = CpuModel(fused), -(-7 // page)
    texts = [prompt(7, seed % 1000 + row) for row in range(rows)]
    tables = [list(range(row * needed, (row + 1) * needed)) for row in range(rows)]
    together = read_one_by_one(model, texts, tables, made_pages(fused, rows * needed, page))
    for row, text in enumerate(texts):
        alone = read_one_by_one(model, [text], [tables[0]], made_pages(fused, needed, page))
        assert torch.equal(alone[0], together[row])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("coded", [False, True])
def test_weights_of_every_kind_are_served(dtype: torch.dtype, *, coded: bool) -> None:
    fused = decoder("qwen3", dtype)
    if coded:
        quantize(fused)
    assert is_known(fused)
    logits = read_one_by_one(CpuModel(fused), [prompt(12)], [[0]], made_pages(fused, 1, 12))[0].float()
    expected = by_itself("qwen3", prompt(12))
    exact = dtype is torch.float32 and not coded
    assert (logits - expected).norm() / expected.norm() < (1e-5 if exact else 0.05)


def test_weights_in_other_places_are_left_to_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = decoder()
    assert is_known(fused)
    fused.layers[1].is_silu = False  # type: ignore[assignment]
    assert not is_known(fused)
    monkeypatch.setattr(cpu_kernels, "_library", lambda: cpu_kernels.NoKernels("none"))
    assert not is_known(decoder())


@pytest.mark.parametrize(
    ("why", "tokens", "positions", "table"),
    [
        ("vocabulary", [VOCABULARY], [0], [[0, 1]]),
        ("vocabulary", [-1], [0], [[0, 1]]),
        ("vocabulary", [2**62], [0], [[0, 1]]),
        ("position", [1], [-1], [[0, 1]]),
        ("position", [1], [8], [[0, 1]]),
        ("position", [1], [2**40], [[0, 1]]),
        ("position", [1, 1], [2**62, 0], [[0, 1], [2, 3]]),
        ("a page", [1], [4], [[0, 6]]),
        ("a page", [1], [4], [[0, -1]]),
        ("a page", [1], [7], [[2**31 - 1, 1]]),
        ("a page", [1], [7], [[-(2**31), 1]]),
        ("the same page", [1, 1], [4, 5], [[0, 2], [1, 2]]),
        ("no rows", [], [], []),
        ("position", [1], [0], [[]]),
    ],
)
def test_a_step_that_leads_out_of_memory_is_refused_and_writes_nothing(
    why: str, tokens: list[int], positions: list[int], table: list[list[int]]
) -> None:
    fused = decoder()
    held = made_pages(fused, 6, 4)
    with pytest.raises(InvalidStep, match=why):
        CpuModel(fused).decode(spans_of(tokens, positions, table), held)
    assert all(store.isnan().all() for layer in held for store in layer)


def test_pages_at_their_limits_are_served_and_those_behind_are_not_read() -> None:
    """A table may hold nonsense behind the pages that a position needs, and a page may be the last one."""
    fused = decoder()
    model, held = CpuModel(fused), made_pages(fused, 6, 4)
    for place, token in enumerate(prompt(8)):
        logits = model.decode(spans_of([token], [place], [[5, 0 if place > 3 else 2**31 - 1]]), held)
    torch.testing.assert_close(logits[0], by_itself("llama", prompt(8)), atol=1e-4, rtol=1e-4)
    assert all(store[1:5].isnan().all() for layer in held for store in layer)


def test_keys_and_values_of_other_shapes_are_refused() -> None:
    fused = decoder()
    model, held = CpuModel(fused), made_pages(fused, 2, 4)

    def refused(spoiled: list[LayerPages]) -> None:
        with pytest.raises(InvalidStep, match="keys and values"):
            model.decode(spans_of([1], [0], [[0]]), spoiled)

    refused(held[:-1])
    first, rest = held[0], held[1:]
    refused([first._replace(values=first.values[:1]), *rest])
    refused([LayerPages(*(store[:, :, :1] for store in first)), *rest])
    refused([LayerPages(*(store.bfloat16() for store in first)), *rest])
    refused([LayerPages(*(store.contiguous() for store in first)), *rest])
    refused([LayerPages(*(store[..., : SIZE // 2] for store in first)), *rest])
    assert model.decode(spans_of([1], [0], [[0]]), held).isfinite().all()


def test_other_pages_are_found() -> None:
    fused = decoder()
    model, text = CpuModel(fused), prompt(6)
    for _ in range(2):
        logits = read_one_by_one(model, [text], [[0]], made_pages(fused, 1, 8))
        torch.testing.assert_close(logits[0], by_itself("llama", text), atol=1e-4, rtol=1e-4)


def test_what_is_no_number_stays_with_its_own_row() -> None:
    fused = decoder()
    model, held = CpuModel(fused), made_pages(fused, 3, 4)
    model.decode(spans_of([1, 2, 3], [0, 0, 0], [[0], [1], [2]]), held)
    held[0].keys[1] = torch.nan
    logits = model.decode(spans_of([1, 2, 3], [1, 1, 1], [[0], [1], [2]]), held)
    assert logits.isnan().any(dim=1).tolist() == [False, True, False]


def test_a_step_without_memory_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = decoder()
    model = CpuModel(fused)
    monkeypatch.setattr(cpu_kernels, "library", lambda: SimpleNamespace(midstream_decode=lambda *_: 3))
    with pytest.raises(RuntimeError) as refused:
        model.decode([Span(0, 0, [1], samples=True, pages=[0])], made_pages(fused, 1, 16))
    assert is_out_of_memory(refused.value)
