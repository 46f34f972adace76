"""A step with prompts in one call says what the module says of the whole, however it is cut and whatever is beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.execution.executor import Runner
from engine.kv_cache import LayerPages
from engine.model.cpu import decoder as cpu_decoder
from engine.model.cpu import kernels as cpu_kernels
from engine.model.cpu.decoder import CpuModel, InvalidStep, prefills
from engine.model.cpu.kernels import quantize
from engine.step_layout import Span
from tests.engine.families import VOCABULARY
from tests.engine.model.decoding import MADE, by_itself, decoder, made_pages
from tests.engine.tiny_models import prompt

pytestmark = pytest.mark.skipif(bool(cpu_kernels.trouble()), reason=cpu_kernels.trouble())

PAGE = 16
LEVELS = range(4)


def span(
    text: list[int], pages: list[int], start: int = 0, stop: int | None = None, *, samples: bool = True
) -> Span:
    return Span(0, start, text[start:stop], samples=samples, pages=pages)


def in_parts(model: CpuModel, text: list[int], cuts: list[int], held: list[LayerPages]) -> Tensor:
    """The logits behind a text that is read up to each cut."""
    pages = list(range(len(held[0].keys)))
    for start, stop in zip([0, *cuts], [*cuts, len(text)], strict=True):
        logits = model.prefill([span(text, pages, start, stop)], held)
    return logits


@pytest.mark.parametrize("family", MADE)
@pytest.mark.parametrize("page", [1, 3, 16, 64])
@pytest.mark.parametrize("threads", [1, 2])
def test_prompts_beside_each_other_are_what_the_module_says_of_each(
    family: str, page: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    texts = [prompt(length, length) for length in (1, 70, 2, 49, 17)]
    fused = decoder(family)
    needed = [-(-len(text) // page) for text in texts]
    shuffled = torch.randperm(sum(needed) + 3, generator=torch.Generator().manual_seed(1)).tolist()
    spans = []
    for text, count in zip(texts, needed, strict=True):
        spans.append(span(text, shuffled[:count]))
        shuffled = shuffled[count:]
    logits = CpuModel(fused).prefill(spans, made_pages(fused, sum(needed) + 3, page))
    torch.set_num_threads(1)
    for row, text in zip(logits, texts, strict=True):
        torch.testing.assert_close(row, by_itself(family, text), atol=1e-4, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 130),
    st.sets(st.integers(1, 129), max_size=3),
    st.sampled_from(LEVELS),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_vectors_of_every_kind_are_served(dtype: torch.dtype, vectors: None) -> None:
    fused = decoder("qwen3", dtype)
    logits = in_parts(CpuModel(fused), prompt(60), [33], made_pages(fused, 4, PAGE))[0].float()
    expected = by_itself("qwen3", prompt(60))
    assert (logits - expected).norm() / expected.norm() < (1e-5 if dtype is torch.float32 else 0.05)


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
    logits = model.prefill(spans, held)
    assert len(logits) == 1
    torch.testing.assert_close(logits[0], by_itself("llama", texts[1]), atol=1e-4, rtol=1e-4)
    assert model.prefill(spans[:1], held).shape == (0, VOCABULARY)


@pytest.mark.parametrize(
    ("why", "tokens", "start", "pages"),
    [
        ("vocabulary", [1, VOCABULARY], 0, [0, 1]),
        ("vocabulary", [1, -1], 0, [0, 1]),
        ("position", [1, 1], -1, [0, 1]),
        ("position", [1, 1], 7, [0, 1]),
        ("position", [1, 1], 2**40, [0, 1]),
        ("a page", [1, 1], 3, [0, 6]),
        ("a page", [1, 1], 3, [0, -1]),
        ("a page", [1, 1], 6, [2**31 - 1, 1]),
        ("no tokens", [], 0, [0]),
        ("position", [1], 0, []),
        ("the same page", [1, 1], 3, [0, 2]),
    ],
)
def test_a_step_that_leads_out_of_memory_is_refused_and_writes_nothing(
    why: str, tokens: list[int], start: int, pages: list[int]
) -> None:
    fused = decoder()
    held = made_pages(fused, 6, 4)
    spans = [Span(0, 0, [1, 2], samples=True, pages=[2]), Span(1, start, tokens, samples=True, pages=pages)]
    with pytest.raises(InvalidStep, match=why):
        CpuModel(fused).prefill(spans, held)
    assert all(store.isnan().all() for layer in held for store in layer)
    with pytest.raises(InvalidStep, match="no rows"):
        CpuModel(fused).prefill([], held)


def test_what_is_no_number_stays_with_its_own_prompt() -> None:
    fused = decoder()
    model, held = CpuModel(fused), made_pages(fused, 6, PAGE)
    texts = [prompt(40, salt) for salt in range(2)]
    spans = [span(text, pages, 0, 30) for text, pages in zip(texts, ([0, 1, 2], [3, 4, 5]), strict=True)]
    model.prefill(spans, held)
    held[0].keys[1] = torch.nan
    spans = [span(text, pages, 30) for text, pages in zip(texts, ([0, 1, 2], [3, 4, 5]), strict=True)]
    assert model.prefill(spans, held).isnan().any(dim=1).tolist() == [True, False]


def test_it_serves_where_it_is_the_faster_one(monkeypatch: pytest.MonkeyPatch, vectors: None) -> None:
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
