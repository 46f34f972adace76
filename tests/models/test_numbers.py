"""The engine computes what transformers computes: greedy replies, rounding, and what sampling draws."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.execution.executor import LoadedModel, Runner
from engine.loading.loader import load
from engine.machine import EngineOptions
from engine.messages import FinishReason, Output
from engine.scheduling.core import EngineCore
from engine.step_layout import Span
from engine.text.reply_text import SamplingParams
from tests.engine.tiny_models import end_of, greedy, prepared_request, run_out, tokens_of
from tests.models.reference import PROMPTS, TIE, Reference

pytestmark = pytest.mark.models

NEW = 24
AT_ONCE = 8
DRAWS = 1000
LIKELIEST = 10


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> LoadedModel:
    """The model in the engine, in float32."""
    return load(EngineOptions(model=str(smollm2), device="cpu", dtype="float32", kv_bytes=2**29))


@pytest.fixture(scope="module")
def replies(engine: LoadedModel, reference: Reference) -> list[tuple[list[int], list[int]]]:
    """Each prompt with its greedy reply, end token included, written while neighbors join and leave."""
    prompts = [reference.prompt(("user", content)) for content in PROMPTS]
    outputs = _with_neighbors(engine, prompts, random.Random(5))
    found = []
    for number, prompt in enumerate(prompts):
        ended = end_of(outputs, f"own-{number}").reason is FinishReason.STOP
        found.append((prompt, tokens_of(outputs, f"own-{number}") + [reference.end] * ended))
    return found


def _with_neighbors(engine: LoadedModel, prompts: Sequence[list[int]], dice: random.Random) -> list[Output]:
    """Return the outputs of all prompts. Others sample beside them; some of these are cancelled in mid-reply."""
    core, outputs = EngineCore(engine, max_batch=AT_ONCE), list[Output]()
    coming, beside = list(enumerate(prompts)), list[str]()
    while coming or core.busy:
        if coming and dice.random() < 0.4:
            number, prompt = coming.pop(0)
            core.submit(prepared_request(f"own-{number}", prompt, greedy(max_new_tokens=NEW)))
        if coming and dice.random() < 0.1:
            beside.append(f"beside-{len(outputs)}")
            core.submit(
                prepared_request(
                    beside[-1],
                    dice.choice(prompts)[: dice.randint(4, 30)],
                    greedy(max_new_tokens=60, do_sample=True, temperature=1.5),
                )
            )
        if beside and dice.random() < 0.1:
            core.cancel(beside.pop(0))
        outputs += core.step()
    return outputs


def test_greedy_replies_equal_transformers(
    replies: list[tuple[list[int], list[int]]], reference: Reference
) -> None:
    """Greedy replies equal transformers', beside others that come and go"""
    found = [reference.difference(prompt, reply) for prompt, reply in replies]
    counted = [one for one in found if one is not None and one.gap > TIE]
    assert len(replies) == 50
    assert counted == []


def test_bfloat16_drifts_no_further_than_transformers(
    replies: list[tuple[list[int], list[int]]], reference: Reference, smollm2: Path
) -> None:
    """Drift in bfloat16, at most 1.1 times transformers'"""
    some = replies[::3]  # transformers takes seconds for each where a CPU has no arithmetic in bfloat16
    exact = [_ten_likeliest(reference.logits(prompt, reply)) for prompt, reply in some]
    rounded = Reference(smollm2, torch.bfloat16)
    theirs = _drift(exact, [rounded.logits(prompt, reply) for prompt, reply in some])
    ours = _drift(
        exact,
        _decoded(
            load(EngineOptions(model=str(smollm2), device="cpu", dtype="bfloat16", kv_bytes=2**28)), some
        ),
    )
    assert ours <= 1.1 * theirs


def _ten_likeliest(logits: Tensor) -> tuple[Tensor, Tensor]:
    best = logits.log_softmax(-1).topk(LIKELIEST)
    return best.indices, best.values


def _drift(exact: Sequence[tuple[Tensor, Tensor]], found: Sequence[Tensor]) -> float:
    """Return how far log-probabilities of the reference's likeliest tokens are off, in the mean."""
    off = [
        (rows.log_softmax(-1).gather(-1, ids) - values).abs().flatten()
        for (ids, values), rows in zip(exact, found, strict=True)
    ]
    return float(torch.cat(off).mean())


def _decoded(model: LoadedModel, replies: Sequence[tuple[list[int], list[int]]]) -> list[Tensor]:
    """Return the logits from which each token of the replies is chosen: prompts at once, then token by token."""
    found: list[list[Tensor]] = [[] for _ in replies]
    size, per_reply = model.kv.page_size, 1 + max(len(p) + len(r) for p, r in replies) // model.kv.page_size
    runner = Runner(model.module, pages=AT_ONCE * per_reply, page_size=size)  # type: ignore[arg-type]
    tables = [range(slot * per_reply, (slot + 1) * per_reply) for slot in range(AT_ONCE)]
    for first in range(0, len(replies), AT_ONCE):
        group = [*enumerate(replies[first : first + AT_ONCE])]
        for slot, (prompt, _) in group:
            logits = runner.run([Span(slot, 0, prompt, samples=True, pages=tables[slot])])
            found[first + slot].append(logits.float().clone())
        for place in range(NEW - 1):
            going = [(slot, prompt, reply) for slot, (prompt, reply) in group if place + 1 < len(reply)]
            spans = [
                Span(slot, len(prompt) + place, [reply[place]], samples=True, pages=tables[slot])
                for slot, prompt, reply in going
            ]
            if not spans:
                break
            logits = runner.run(spans).float().clone()
            for row, (slot, _, _) in enumerate(going):
                found[first + slot].append(logits[row : row + 1])
    return [torch.cat(rows) for rows in found]


SAMPLED: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "temperature 1": ({}, []),
    "temperature 0.7, top_p 0.9": (
        {"temperature": 0.7, "top_p": 0.9},
        [TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.9)],
    ),
    "temperature 1.3, top_k 8": (
        {"temperature": 1.3, "top_k": 8},
        [TemperatureLogitsWarper(1.3), TopKLogitsWarper(8)],
    ),
    "min_p 0.05": ({"min_p": 0.05}, [MinPLogitsWarper(0.05)]),
    "repetition_penalty 1.3, top_k 40": (
        {"repetition_penalty": 1.3, "top_k": 40},
        [RepetitionPenaltyLogitsProcessor(1.3), TopKLogitsWarper(40)],
    ),
}
"""Sampling values, and transformers' processors for them."""


@pytest.mark.parametrize("values", SAMPLED)
def test_what_is_drawn_has_transformers_probabilities(
    values: str, engine: LoadedModel, reference: Reference
) -> None:
    """Sampling has transformers' probabilities: p of chi-squared tests"""
    given, processors = SAMPLED[values]
    # The last token alone is computed for each draw, since the others fill whole pages.
    prompt = reference.prompt(("user", " ".join(PROMPTS[30:] + PROMPTS[:10])))[: engine.kv.page_size + 1]
    logits = reference.logits(prompt, [reference.end])
    expected = LogitsProcessorList(processors)(torch.tensor([prompt]), logits).softmax(-1)[0]
    assert (expected > 0).sum() >= 8, "there is too little to choose from"
    sampling = greedy(max_new_tokens=1, do_sample=True, **given)
    drawn = _drawn(engine, prompt, sampling)
    assert sum(drawn) == DRAWS
    assert float(drawn[expected == 0].sum()) == 0, "a token was drawn that the limits leave out"
    p = _chi_squared_p(drawn, expected * DRAWS)
    assert p > 1e-3


def _drawn(engine: LoadedModel, prompt: list[int], sampling: SamplingParams) -> Tensor:
    """Return how often each token was drawn, by as many seeds."""
    core = EngineCore(engine, max_batch=32)
    for seed in range(DRAWS):
        core.submit(
            prepared_request(
                f"draw-{seed}", prompt, msgspec.structs.replace(sampling, seed=seed, ignore_eos=True)
            )
        )
    outputs, counts = run_out(core), torch.zeros(engine.vocabulary)
    for output in outputs:
        for token in tokens_of([output], output.request_id):
            counts[token] += 1
    return counts


def _chi_squared_p(drawn: Tensor, expected: Tensor) -> float:
    """Return how likely counts are at least so far off. Tokens that are expected less than five times count together."""
    often = expected >= 5
    counts = torch.cat((drawn[often], drawn[~often].sum()[None])).double()
    means = torch.cat((expected[often], expected[~often].sum()[None])).double()
    counts, means = counts[means > 1e-9], means[means > 1e-9]
    statistic = ((counts - means) ** 2 / means).sum()
    return float(torch.special.gammaincc(torch.tensor((len(means) - 1) / 2).double(), statistic / 2))
