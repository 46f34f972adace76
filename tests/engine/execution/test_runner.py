"""The forward pass over pages, and its memory."""

from __future__ import annotations

import pytest
import torch

from engine.execution.executor import Runner
from engine.kv_cache import PagedCache
from engine.model import attention as reference
from engine.model import fused_decoder as attention
from engine.model.attention import AttentionNotSupported
from engine.step_layout import Span
from tests.engine.tiny_models import make, prompt, served

FIRST, SECOND = [5, 0, 3], [7, 1, 8]
"""Pages of two requests, in no order."""


@torch.inference_mode()
def by_itself(tokens: list[int]) -> torch.Tensor:
    return make("llama")(torch.tensor([tokens])).logits[0, -1]


def close(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(got, expected, atol=1e-4)


def runner() -> Runner:
    return Runner(served("llama").module, pages=10, page_size=16)


def all_but_the_last(text: list[int], pages: list[int]) -> Span:
    return Span(0, 0, text[:-1], samples=False, pages=pages)


def the_last(text: list[int], pages: list[int]) -> Span:
    return Span(0, len(text) - 1, text[-1:], samples=True, pages=pages)


@pytest.mark.usefixtures("cpu_operations")
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
    assert close(logits[0], by_itself(text))
    assert close(logits[1], by_itself(beside))


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
