"""The forward pass over pages, its memory, and the number of threads that compute it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from engine.execution.executor import LONGEST_PAUSE, SHORTEST_PAUSE, ComputeThreads, Runner
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


def steps(threads: ComputeThreads, count: int, tokens: int, takes: Callable[[int], float]) -> Counter[int]:
    chosen: Counter[int] = Counter()
    for _ in range(count):
        number = threads.choose(tokens)
        chosen[number] += 1
        threads.observe(takes(number))
    return chosen


def test_one_thread_is_found_where_waiting_for_each_other_costs_more_than_it_gains() -> None:
    threads = ComputeThreads(8)
    steps(threads, 20, 1, float)
    assert steps(threads, 100, 1, float)[1] >= 95


def test_all_threads_are_found_where_they_help_and_each_size_learns_by_itself() -> None:
    threads = ComputeThreads(8)
    threads.observe(1.0)  # nothing was chosen for this
    steps(threads, 20, 1, float)
    steps(threads, 20, 32, lambda number: 1 / number)
    assert steps(threads, 50, 32, lambda number: 1 / number) == {8: 50}
    assert threads.choose(1) == 1


def test_others_are_tried_now_and_then_and_ever_less_often() -> None:
    threads = ComputeThreads(2)
    steps(threads, 10, 1, float)
    assert 1 <= steps(threads, 2 * SHORTEST_PAUSE, 1, float)[2] <= 8
    steps(threads, 10 * LONGEST_PAUSE, 1, float)
    assert steps(threads, LONGEST_PAUSE, 1, float)[2] <= 1


def test_a_change_of_the_machine_is_found_out() -> None:
    threads = ComputeThreads(2)
    steps(threads, 100, 1, float)
    steps(threads, 3 * LONGEST_PAUSE, 1, lambda number: 3 / number)
    assert threads.choose(1) == 2
