"""The forward pass over pages, and its memory."""

from __future__ import annotations

import pytest
import torch

from engine.execution.executor import Runner
from engine.kv_cache import PageCopy, PagedCache
from engine.model import attention as reference
from engine.model import fused_decoder as attention
from engine.model.attention import AttentionNotSupported
from engine.step_layout import Span
from tests.engine.tiny_models import VOCABULARY, make, prompt, served

with_each = pytest.mark.usefixtures("cpu_operations")

FIRST, SECOND, THIRD = [5, 0, 3], [7, 1, 8], [2, 9, 4]
"""Pages of three requests, in no order."""


@torch.inference_mode()
def by_itself(family: str, tokens: list[int]) -> torch.Tensor:
    return make(family)(torch.tensor([tokens])).logits[0, -1]


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got, expected, atol=1e-4)


def runner(*, pages: int = 10, page: int = 16, family: str = "llama") -> Runner:
    return Runner(served(family).module, pages=pages, page_size=page)


def all_but_the_last(text: list[int], pages: list[int]) -> Span:
    return Span(0, 0, text[:-1], samples=False, pages=pages)


def the_last(text: list[int], pages: list[int]) -> Span:
    return Span(0, len(text) - 1, text[-1:], samples=True, pages=pages)


@with_each
@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek v3", "llama4", "gpt2"])
def test_requests_side_by_side_get_what_they_get_alone(family: str) -> None:
    run, tables = runner(family=family), (FIRST, SECOND, THIRD)
    texts = [prompt(9), prompt(40, 1), prompt(15, 2)]
    run.run([all_but_the_last(text, table) for text, table in zip(texts, tables, strict=True)])
    logits = run.run([the_last(text, table) for text, table in zip(texts, tables, strict=True)])
    assert all(close(row, by_itself(family, text)) for row, text in zip(logits, texts, strict=True))


@with_each
@pytest.mark.parametrize("page", [1, 7, 256])
def test_pages_may_have_any_size(page: int) -> None:
    run, text = runner(page=page, pages=64), prompt(30)
    table = list(range(40, 9, -1)) if page == 1 else [5, 0, 3, 9, 1]
    run.run([Span(0, 0, text[:11], samples=False, pages=table)])
    run.run([Span(0, 11, text[11:-1], samples=False, pages=table)])
    assert close(run.run([the_last(text, table)])[0], by_itself("llama", text))


@with_each
def test_a_shared_beginning_is_read_from_the_same_pages() -> None:
    run, text = runner(), prompt(32)
    run.run([Span(0, 0, text, samples=False, pages=FIRST)])
    one, other = [*text, *prompt(5, 1)], [*text, *prompt(9, 2)]
    tables = [*FIRST[:2], 7], [*FIRST[:2], 8]
    spans = [
        Span(n, 32, t[32:], samples=True, pages=p)
        for n, (t, p) in enumerate(zip((one, other), tables, strict=True))
    ]
    logits = run.run(spans)
    assert close(logits[0], by_itself("llama", one))
    assert close(logits[1], by_itself("llama", other))


@with_each
def test_a_copied_page_goes_on_by_itself() -> None:
    run, text = runner(), prompt(20)
    run.run([Span(0, 0, text, samples=False, pages=FIRST)])
    branch = [*text[:18], *prompt(3, 4)]
    run.cache.copy([PageCopy(FIRST[1], 6)])
    logits = run.run([Span(1, 18, branch[18:], samples=True, pages=[FIRST[0], 6])])
    assert close(logits[0], by_itself("llama", branch))
    more = [*text, 1]
    assert close(run.run([the_last(more, FIRST)])[0], by_itself("llama", more))


@with_each
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_prompt_longer_than_a_block_of_queries(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "QUERY_BLOCK", 16)
    text = prompt(110)  # of the kernel a block has 96
    logits = runner(family=family).run([Span(1, 0, text, samples=True, pages=[5, 0, 3, 7, 1, 8, 2])])
    assert close(logits[0], by_itself(family, text))


def test_running_the_same_spans_again_changes_nothing() -> None:
    run, spans = runner(), [Span(1, 0, prompt(30), samples=True, pages=FIRST)]
    first = run.run(spans)
    assert torch.equal(first, run.run(spans))


@with_each
@torch.inference_mode()
def test_what_is_no_number_stays_in_its_own_pages() -> None:
    """Memory that was never written, and what a failed request left, may hold anything."""
    run, text = runner(), prompt(20)
    run.run([Span(0, 0, [1], samples=False, pages=FIRST)])
    for layer in run.cache.layers:
        for store in layer:
            store.fill_(torch.nan)
    run.run([all_but_the_last(text, FIRST)])
    beside = prompt(3, 1)
    logits = run.run([the_last(text, FIRST), Span(1, 0, beside, samples=True, pages=SECOND)])
    assert close(logits[0], by_itself("llama", text))
    assert close(logits[1], by_itself("llama", beside))


def test_a_page_holds_the_tokens_of_a_head_side_by_side() -> None:
    run = runner()
    run.run([Span(0, 0, [1], samples=False, pages=FIRST)])
    assert run.cache.tokens == 160
    for layer in run.cache.layers:
        assert layer.keys.shape == (10, 16, 2, 8)
        assert layer.keys.stride() == (256, 8, 128, 1)


def test_the_cache_takes_nothing_outside_a_step() -> None:
    cache = PagedCache(pages=1, page_size=8, store=reference.Reference().store)
    with pytest.raises(RuntimeError, match="outside a step"):
        cache.update(torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1), 0)


def test_masks_of_a_model_s_own_making_are_refused() -> None:
    for use_vmap in (True, False):
        with pytest.raises(AttentionNotSupported):
            attention.mask_rule(mask_function=lambda *_: torch.tensor(True), use_vmap=use_vmap)


def test_logits_of_every_row_where_one_was_wanted_are_refused() -> None:
    module = served("llama").module
    module.register_forward_pre_hook(
        lambda _module, arguments, options: (arguments, options | {"logits_to_keep": 0}), with_kwargs=True
    )
    with pytest.raises(AttentionNotSupported, match="single positions"):
        Runner(module, pages=10, page_size=16).run([Span(0, 0, prompt(5), samples=True, pages=FIRST)])


def test_the_vocabulary_is_the_width_of_the_logits() -> None:
    assert runner().run([Span(0, 0, [1], samples=True, pages=FIRST)]).shape == (1, VOCABULARY)
