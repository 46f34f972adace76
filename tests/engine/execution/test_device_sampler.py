"""The sampler on a CUDA device that is not there: it chooses without waiting, and its tokens are fetched once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace

from engine.execution.guide import mask_of
from engine.execution.sampler import Sampler, SamplerState
from engine.text.reply_text import SamplingParams
from tests.engine.fake_cuda import CUDA, Launches, fake_cuda

VOCABULARY = 1000
GREEDY = SamplingParams(9, False, 1.0, 1.0, 0, 1.0, None, None)
WAYS = {
    "greedy": GREEDY,
    "shortlist": replace(GREEDY, do_sample=True, top_k=20, top_p=0.9, temperature=0.7),
    "whole": replace(GREEDY, do_sample=True, top_p=0.95, top_k=0),
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
