"""A step in one call says what the module says, however prompts are cut and whatever runs beside them.

What leads out of memory is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine.execution.executor import Runner
from engine.kv_cache import LayerPages
from engine.model.cpu import decoder as cpu_decoder
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.decoder import CpuModel, InvalidStep, is_known, prefills
from engine.model.cpu.kernels import quantize
from engine.model.devices import is_out_of_memory
from engine.model.fused_decoder import FusedDecoder, fused_decoder
from engine.step_layout import Span
from tests.engine.conftest import computing_on, needs_kernels
from tests.engine.families import SIZES, VOCABULARY
from tests.engine.tiny_models import prompt

pytestmark = needs_kernels

PAGE = 16
SIZE = SIZES["head_dim"]


ODD_SIZES = SIZES | {
    "hidden_size": 150,
    "intermediate_size": 302,
    "num_attention_heads": 6,
    "head_dim": 32,
    "initializer_range": 0.1,
}
"""Wider than what the kernels multiply at a time, no multiple of any block, and with heads for vectors of pairs."""


MADE = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "odd llama": lambda: LlamaForCausalLM(LlamaConfig(**ODD_SIZES, attention_bias=True, mlp_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
}


def decoder(family: str = "llama", dtype: torch.dtype = torch.float32) -> FusedDecoder:
    torch.manual_seed(2)
    module = MADE[family]().to(dtype).eval()
    fused = fused_decoder(module)
    assert fused is not None
    return fused


def made_pages(fused: FusedDecoder, pages: int, size: int) -> list[LayerPages]:
    """Return pages full of NaN, for each layer."""
    first: Any = fused.layers[0]
    like = torch.empty(0, first.kv_heads, first.size, dtype=fused.dtype)
    made = [LayerPages.make(like, like, pages, size) for _ in fused.layers]
    for layer in made:
        for store in layer:
            store.fill_(torch.nan)
    return made


def by_itself(family: str, text: list[int]) -> Tensor:
    """Return what the plain module says behind a text."""
    return _by_itself(family, tuple(text))


@cache
@torch.inference_mode()
def _by_itself(family: str, text: tuple[int, ...]) -> Tensor:
    torch.manual_seed(2)
    with computing_on(1):
        return MADE[family]().eval()(torch.tensor([text])).logits[0, -1]


def span(
    text: list[int], pages: list[int], start: int = 0, stop: int | None = None, *, samples: bool = True
) -> Span:
    return Span(0, start, text[start:stop], samples=samples, pages=pages)


def shuffled_tables(texts: Sequence[list[int]], page: int) -> tuple[list[list[int]], int]:
    """Pages for each text, in no order, and how many there are, with some that nobody has."""
    needed = [-(-len(text) // page) for text in texts]
    left = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(1)).tolist()
    return [[left.pop() for _ in range(count)] for count in needed], sum(needed) + 3


def one_by_one(
    model: CpuModel, texts: list[list[int]], tables: list[list[int]], held: list[LayerPages]
) -> Tensor:
    """Read texts of one length token by token, all at once, and return the logits behind the last ones."""
    for place in range(len(texts[0])):
        spans = [span(text, pages, place, place + 1) for text, pages in zip(texts, tables, strict=True)]
        logits = model.decode(spans, held)
    return logits


def in_parts(model: CpuModel, text: list[int], cuts: list[int], held: list[LayerPages]) -> Tensor:
    """Return the logits behind a text that is read up to each cut."""
    pages = list(range(len(held[0].keys)))
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        logits = model.prefill([span(text, pages, start, stop)], held)
    return logits


def assert_as_by_itself(logits: Tensor, family: str, texts: Sequence[list[int]]) -> None:
    for row, text in zip(logits, texts, strict=True):
        torch.testing.assert_close(row, by_itself(family, text), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("family", MADE)
@pytest.mark.parametrize("page", [1, 3, 64])
def test_replies_and_prompts_are_what_the_module_says_of_the_whole(family: str, page: int) -> None:
    fused = decoder(family)
    model = CpuModel(fused)
    replies = [prompt(19, salt) for salt in range(5)]
    tables, pages = shuffled_tables(replies, page)
    assert_as_by_itself(one_by_one(model, replies, tables, made_pages(fused, pages, page)), family, replies)
    prompts = [prompt(length, length) for length in (1, 70, 2, 49, 17)]
    tables, pages = shuffled_tables(prompts, page)
    spans = [span(text, table) for text, table in zip(prompts, tables, strict=True)]
    assert_as_by_itself(model.prefill(spans, made_pages(fused, pages, page)), family, prompts)


@settings(max_examples=30)
@given(st.integers(1, 14), st.integers(1, 9), st.integers(0, 2**31))
def test_a_row_is_the_same_alone_and_beside_others(rows: int, page: int, seed: int) -> None:
    fused = decoder()
    model, needed = CpuModel(fused), -(-7 // page)
    texts = [prompt(7, seed % 1000 + row) for row in range(rows)]
    tables = [list(range(row * needed, (row + 1) * needed)) for row in range(rows)]
    together = one_by_one(model, texts, tables, made_pages(fused, rows * needed, page))
    for row, text in enumerate(texts):
        alone = one_by_one(model, [text], [tables[0]], made_pages(fused, needed, page))
        assert torch.equal(alone[0], together[row])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 130),
    st.sets(st.integers(1, 129), max_size=3),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(("qwen3", "odd llama")),
)
def test_what_a_prompt_says_does_not_depend_on_where_it_is_cut(
    length: int,
    cuts: set[int],
    level: int,
    half: bool,  # noqa: FBT001
    family: str,
) -> None:
    fused = decoder(family, torch.bfloat16 if half else torch.float32)
    model, text = CpuModel(fused), prompt(length, 3)
    pages = -(-length // PAGE)
    cpu_kernels.library().midstream_vectors(level)
    try:
        whole, parts = made_pages(fused, pages, PAGE), made_pages(fused, pages, PAGE)
        expected = in_parts(model, text, [], whole)
        # a part of a single token attends as decode steps do
        wanted = [cut for cut in sorted(cuts) if cut < length]
        lengths = [b - a for a, b in zip([0, *wanted], [*wanted, length], strict=True)]
        logits = in_parts(model, text, wanted, parts)
    finally:
        cpu_kernels.library().midstream_vectors(-1)
    if min(lengths) > 1 or length == 1:
        assert torch.equal(logits, expected)
        for layer, other in zip(whole, parts, strict=True):
            for store, part in zip(layer, other, strict=True):
                assert torch.equal(store.nan_to_num(9), part.nan_to_num(9))
    else:
        error = (logits - expected).float().norm() / expected.float().norm()
        assert error < (0.05 if half else 1e-4)


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("coded", [False, True])
def test_weights_and_vectors_of_every_kind_are_served(dtype: torch.dtype, *, coded: bool) -> None:
    fused, text = decoder("qwen3", dtype), prompt(60)
    if coded:
        quantize(fused)
    assert is_known(fused)
    model = CpuModel(fused)
    read = [one_by_one(model, [text], [[0]], made_pages(fused, 1, 60))]
    if not coded:
        read.append(in_parts(model, text, [33], made_pages(fused, 4, PAGE)))
    expected = by_itself("qwen3", text)
    for (logits,) in read:
        off = (logits.float() - expected).norm() / expected.norm()
        assert off < (1e-5 if dtype is torch.float32 and not coded else 0.05)


def test_weights_in_other_places_are_left_to_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = decoder()
    assert is_known(fused)
    fused.layers[1].is_silu = False  # type: ignore[assignment]
    assert not is_known(fused)
    monkeypatch.setattr(cpu_kernels, "_library", lambda: cpu_kernels.NoKernels("none"))
    assert not is_known(decoder())


def test_replies_that_run_beside_a_prompt_say_what_they_say_alone() -> None:
    fused = decoder()
    model = CpuModel(fused)
    text = prompt(40)
    alone, beside = made_pages(fused, 6, PAGE), made_pages(fused, 6, PAGE)
    for held in (alone, beside):
        model.prefill([span(text, [0, 1, 2], 0, 39)], held)
    expected = model.decode([span(text, [0, 1, 2], 39)], alone)
    both = model.prefill([span(text, [0, 1, 2], 39), span(prompt(45, 7), [3, 4, 5])], beside)
    torch.testing.assert_close(both[0], expected[0], atol=1e-5, rtol=1e-5)


def test_only_spans_that_sample_have_logits() -> None:
    fused = decoder()
    model, held = CpuModel(fused), made_pages(fused, 4, PAGE)
    texts = [prompt(20, salt) for salt in range(2)]
    spans = [span(texts[0], [0, 1], samples=False), span(texts[1], [2, 3])]
    assert_as_by_itself(model.prefill(spans, held), "llama", texts[1:])
    assert model.prefill(spans[:1], held).shape == (0, VOCABULARY)


@pytest.mark.parametrize(
    ("why", "spans"),
    [
        ("vocabulary", [([VOCABULARY], 0, [0, 1])]),
        ("vocabulary", [([-1], 0, [0, 1])]),
        ("vocabulary", [([2**62], 0, [0, 1])]),
        ("vocabulary", [([1, 2], 0, [2]), ([1, VOCABULARY], 0, [0, 1])]),
        ("position", [([1], -1, [0, 1])]),
        ("position", [([1], 8, [0, 1])]),
        ("position", [([1], 2**40, [0, 1])]),
        ("position", [([1], 0, [])]),
        ("position", [([1], 2**62, [0, 1]), ([1], 0, [2, 3])]),
        ("position", [([1, 2], 0, [2]), ([1, 1], 7, [0, 1])]),
        ("a page", [([1], 4, [0, 6])]),
        ("a page", [([1], 4, [0, -1])]),
        ("a page", [([1], 7, [2**31 - 1, 1])]),
        ("a page", [([1], 7, [-(2**31), 1])]),
        ("a page", [([1, 2], 0, [2]), ([1, 1], 3, [0, 6])]),
        ("the same page", [([1], 4, [0, 2]), ([1], 5, [1, 2])]),
        ("the same page", [([1, 2], 0, [2]), ([1, 1], 3, [0, 2])]),
        ("no tokens", [([1, 2], 0, [2]), ([], 0, [0])]),
        ("no rows", []),
    ],
)
def test_a_step_that_leads_out_of_memory_is_refused_and_writes_nothing(
    why: str, spans: list[tuple[list[int], int, list[int]]]
) -> None:
    fused = decoder()
    model, held = CpuModel(fused), made_pages(fused, 6, 4)
    step = [
        Span(row, start, tokens, samples=True, pages=pages)
        for row, (tokens, start, pages) in enumerate(spans)
    ]
    for compute in (model.prefill, *([model.decode] if CpuModel.decodes(step) else [])):
        with pytest.raises(InvalidStep, match=why):
            compute(step, held)
    assert all(store.isnan().all() for layer in held for store in layer)


def test_pages_at_their_limits_are_served_and_those_behind_are_not_read() -> None:
    """A table may hold nonsense behind the pages that a position needs, and a page may be the last one."""
    fused = decoder()
    model, held, text = CpuModel(fused), made_pages(fused, 6, 4), prompt(8)
    for place in range(8):
        logits = model.decode([span(text, [5, 0 if place > 3 else 2**31 - 1], place, place + 1)], held)
    assert_as_by_itself(logits, "llama", [text])
    assert all(store[1:5].isnan().all() for layer in held for store in layer)


def test_keys_and_values_of_other_shapes_are_refused_and_other_pages_are_found() -> None:
    fused = decoder()
    model, held = CpuModel(fused), made_pages(fused, 2, 4)
    first, *rest = held
    for spoiled in (
        rest,
        [first._replace(values=first.values[:1]), *rest],
        [LayerPages(*(store[:, :, :1] for store in first)), *rest],
        [LayerPages(*(store.bfloat16() for store in first)), *rest],
        [LayerPages(*(store.contiguous() for store in first)), *rest],
        [LayerPages(*(store[..., : SIZE // 2] for store in first)), *rest],
    ):
        with pytest.raises(InvalidStep, match="keys and values"):
            model.decode([span([1], [0])], spoiled)
    for _ in range(2):
        logits = one_by_one(model, [prompt(6)], [[0]], made_pages(fused, 1, 8))
        assert_as_by_itself(logits, "llama", [prompt(6)])


@pytest.mark.parametrize("compute", ["decode", "prefill"])
def test_what_is_no_number_stays_with_its_own_row(compute: str) -> None:
    fused, more = decoder(), 1 if compute == "decode" else 10
    model, held = CpuModel(fused), made_pages(fused, 9, PAGE)
    texts = [prompt(30 + more, salt) for salt in range(3)]
    rows = [(text, [3 * row, 3 * row + 1, 3 * row + 2]) for row, text in enumerate(texts)]
    model.prefill([span(text, pages, 0, 30) for text, pages in rows], held)
    held[0].keys[4] = torch.nan
    logits = getattr(model, compute)([span(text, pages, 30) for text, pages in rows], held)
    assert logits.isnan().any(dim=1).tolist() == [False, True, False]


def test_a_step_without_memory_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = decoder()
    model = CpuModel(fused)
    monkeypatch.setattr(cpu_kernels, "library", lambda: SimpleNamespace(midstream_decode=lambda *_: 3))
    with pytest.raises(RuntimeError) as refused:
        model.decode([Span(0, 0, [1], samples=True, pages=[0])], made_pages(fused, 1, 16))
    assert is_out_of_memory(refused.value)


@pytest.mark.usefixtures("vectors")
def test_it_serves_where_it_is_the_faster_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prefills(decoder()) == cpu_kernels.has_wide_vectors()
    half = decoder(dtype=torch.bfloat16)
    monkeypatch.setattr(cpu_decoder, "has_tiles", lambda: False)
    assert prefills(half) == cpu_kernels.has_pairs()
    monkeypatch.setattr(cpu_decoder, "has_tiles", lambda: True)
    assert not prefills(half)
    odd = decoder()
    odd.layers[1].down = torch.nn.Linear(33, odd.embedding.embedding_dim, bias=False)
    assert not prefills(odd)
    coded = decoder()
    quantize(coded)
    assert not prefills(coded)
    with pytest.raises(InvalidStep, match="weights"):
        CpuModel(coded).prefill([span(prompt(3), [0])], made_pages(coded, 1, PAGE))


@torch.inference_mode()
def test_the_runner_gives_it_prompts_and_steps_of_many_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, prefill = [], CpuModel.prefill

    def counted(self: CpuModel, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        rows.append(sum(len(span.tokens) for span in spans))
        return prefill(self, spans, layers)

    monkeypatch.setattr(CpuModel, "prefill", counted)
    runner = Runner(decoder(), pages=70, page_size=PAGE)
    runner.run([span(prompt(3), [0])])  # the first step makes the pages
    replies = [span(prompt(1, place), [place]) for place in range(70)]
    for spans in (
        [span(prompt(20), [0, 1])],
        replies[:64],
        replies[:65],
        [*replies[:2], span(prompt(9), [5])],
    ):
        runner.run(spans)
    assert rows == ([20, 65, 11] if prefills(decoder()) else [])
