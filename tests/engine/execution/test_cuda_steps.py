"""Whole steps of a model, and its sampler, on a CUDA device that is not there; the same model over the same kernels for its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from engine.execution import executor as executors
from engine.execution.executor import Runner
from engine.execution.guide import mask_of
from engine.execution.sampler import Sampler, SamplerState
from engine.model.cuda.operators import Cuda
from engine.step_layout import Span
from engine.text.reply_text import SamplingParams
from tests.engine.fake_cuda import CONTEXT, CUDA, LAYERS, PAGE, Launches, fake_cuda, llama
from tests.engine.model.paged import DEVICE
from tests.engine.tiny_models import make, prompt, served

MIXED = (200, 8000, 1, 512, 3000, 77, 256, 257)
ATTENTION = ("attend_decode", "attend_prompts", "store_rows")
GREEDY = SamplingParams(9, False, 1.0, 1.0, 0, 1.0, None, None)
SAMPLED = replace(GREEDY, do_sample=True, top_p=0.95)


@pytest.fixture(autouse=True)
def kernels_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it runs."""
    monkeypatch.setattr(executors, "backend_for", lambda _device, _dtype: Cuda(processors=132))


def spans(lengths: Sequence[int], *prompts: tuple[int, int]) -> list[Span]:
    """Replies of so many tokens, then chunks of prompts: (tokens before, tokens in it)."""
    table = list(range(CONTEXT // PAGE))
    replies = [Span(slot, length - 1, [1], True, table) for slot, length in enumerate(lengths)]
    return [*replies, *(Span(9, before, [1] * count, True, table) for before, count in prompts)]


def traced(batch: list[Span]) -> Launches:
    """The second step of these spans, from its input on to its tokens."""
    with fake_cuda():
        run = Runner(llama(), pages=100, page_size=PAGE, context_tokens=CONTEXT)
        sampler = Sampler(slots=len(batch), vocabulary=128_256, device=CUDA)
        for slot in range(len(batch)):
            sampler.join(slot, SamplerState.of(SAMPLED), [1])
        for _ in range(2):
            with Launches() as launches:
                tokens = sampler.choose(run.run(batch), range(len(batch)))
        assert tokens.device == CUDA
        assert tokens.shape == (len(batch),)
    return launches


def test_a_steps_launches_do_not_grow_with_replies_nor_with_their_lengths() -> None:
    """1, 8, 64 and 256 replies of mixed lengths; nothing is fetched but by whoever wants the tokens."""
    steps = [traced(spans([MIXED[row % len(MIXED)] for row in range(rows)])) for rows in (1, 8, 64, 256)]
    assert len({tuple(sorted(step.found.items())) for step in steps[1:]}) == 1
    for step in steps:
        assert [step.found[f"midstream::{name}"] for name in ATTENTION] == [2 * LAYERS, 0, LAYERS]
    assert all(step.total <= 20 * LAYERS + 16 for step in steps)
    assert all(step.sent["fetched"] == 0 for step in steps)
    assert all(step.sent["sent"] <= 3 for step in steps)


def test_a_chunk_of_a_prompt_costs_one_launch_a_layer_beside_replies() -> None:
    plain, mixed = traced(spans(MIXED * 8)), traced(spans(MIXED * 8, (4000, 500)))
    assert [mixed.found[f"midstream::{name}"] for name in ATTENTION] == [2 * LAYERS, LAYERS, LAYERS]
    assert mixed.total <= plain.total + LAYERS + 2
    assert mixed.sent["fetched"] == 0


@torch.inference_mode()
def test_requests_side_by_side_get_what_they_get_alone() -> None:
    """Sliding windows and soft caps among them, by the kernels' own numbers."""
    run = Runner(served("gemma2").module.to(DEVICE), pages=10, page_size=16)
    texts, tables = [prompt(9), prompt(40, 1), prompt(15, 2)], ([5, 0, 3], [7, 1, 8], [2, 9, 4])
    requests = list(enumerate(zip(texts, tables, strict=True)))
    run.run([Span(n, 0, text[:-1], samples=False, pages=table) for n, (text, table) in requests])
    logits = run.run(
        [Span(n, len(text) - 1, text[-1:], samples=True, pages=table) for n, (text, table) in requests]
    )
    for row, text in zip(logits, texts, strict=True):
        expected = make("gemma2")(torch.tensor([text])).logits[0, -1]
        torch.testing.assert_close(row.cpu(), expected, rtol=1e-3, atol=1e-3)


VOCABULARY = 1000
WAYS = {
    "greedy": GREEDY,
    "shortlist": replace(GREEDY, do_sample=True, top_k=20, top_p=0.9, temperature=0.7),
    "whole": SAMPLED,
    "long tail": replace(GREEDY, do_sample=True, top_k=0),
    "penalised": replace(GREEDY, do_sample=True, top_p=0.9, top_k=0, repetition_penalty=1.2),
    "min-p": replace(GREEDY, do_sample=True, top_p=0.9, top_k=0, min_p=0.1),
    "min-p of a shortlist": replace(GREEDY, do_sample=True, top_k=20, min_p=0.1),
    "counted": replace(GREEDY, presence_penalty=0.5, frequency_penalty=0.5),
    "biased": replace(GREEDY, logit_bias=((3, 1.0), (7, -100.0))),
    "not to end": replace(GREEDY, min_tokens=5),
}


def chosen(*ways: SamplingParams, masks: bool = False) -> Launches:
    """Launches of a second step. `masks`: every second row has a grammar."""
    guides = [SimpleNamespace(mask=mask_of({row, 999}, VOCABULARY)) for row in range(len(ways) * masks)]
    with fake_cuda():
        sampler = Sampler(slots=512, vocabulary=VOCABULARY, device=CUDA, ends=(2, 5))
        for slot, way in enumerate(ways):
            guide = guides[slot] if masks and slot % 2 else None
            sampler.join(slot, SamplerState.of(way, guide), [1, 2, 3])  # type: ignore[arg-type]
        logits = torch.empty(len(ways), VOCABULARY, dtype=torch.bfloat16, device=CUDA)
        for _ in range(2):
            with Launches() as launches:
                tokens = sampler.choose(logits, range(len(ways)))
        assert (tokens.shape, tokens.device) == ((len(ways),), CUDA)
    assert launches.sent["fetched"] == 0
    return launches


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_chosen_without_waiting_by_as_many_launches_for_any_number_of_rows(way: str) -> None:
    few, many = chosen(*[WAYS[way]] * 8), chosen(*[WAYS[way]] * 256)
    assert many.total <= 24
    assert few.found == many.found
    assert few.sent == many.sent


def test_launches_of_a_mixed_batch_do_not_grow_with_its_rows() -> None:
    few, many = (chosen(*[*WAYS.values()] * times) for times in (2, 25))
    assert few.found == many.found


def test_masks_are_sent_at_once_and_waited_for_by_nobody() -> None:
    few, many = (chosen(*[WAYS["whole"]] * rows, masks=True) for rows in (4, 200))
    assert few.found == many.found
    assert few.sent == many.sent
