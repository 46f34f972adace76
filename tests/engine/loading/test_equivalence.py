"""Greedy replies are those of `model.generate`, token for token, whatever runs beside them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from app.settings import DEMO_MODEL
from engine.loading.loader import load
from engine.loading.probe import probe
from engine.machine import EngineOptions
from engine.messages import FinishReason
from engine.scheduling.core import EngineCore
from tests.engine.families import FAMILIES, VOCABULARY
from tests.engine.tiny_models import (
    end_of,
    greedy,
    make,
    prepared_request,
    prompt,
    run_out,
    served,
    tokens_of,
)

TIE = 1e-4


def generated(module: PreTrainedModel, tokens: list[int], count: int) -> list[int]:
    given = torch.tensor([tokens])
    made = module.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=count, do_sample=False, pad_token_id=0
    )
    return made[0, len(tokens) :].tolist()


@cache
def reference_of(family: str) -> PreTrainedModel:
    """The model as `transformers` runs it. Nobody changes it."""
    return make(family)


@cache
def written_by(family: str, size: int, salt: int, count: int) -> list[int]:
    """The reference's reply to a prompt, made once: pages and kernels are no business of it."""
    return generated(reference_of(family), prompt(size, salt=salt), count)


@torch.inference_mode()
def assert_same_up_to_ties(
    module: PreTrainedModel, tokens: list[int], got: list[int], expected: list[int]
) -> None:
    place = next((i for i, (a, b) in enumerate(zip(got, expected, strict=False)) if a != b), None)
    if place is None:
        assert len(got) == len(expected)
        return
    logits = module(torch.tensor([tokens + expected[:place]])).logits[0, -1]
    assert abs(logits[got[place]] - logits[expected[place]]) < TIE


@pytest.mark.usefixtures("cpu_operations")
@pytest.mark.parametrize(
    "page", [16, pytest.param(1, marks=pytest.mark.long), pytest.param(256, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_replies_that_join_and_leave_mid_flight_are_what_generate_writes(family: str, page: int) -> None:
    """More requests than slots, prompts in chunks of 16, lengths of all kinds, one cancelled in between."""
    repeats = len(set(written_by(family, 40, 0, 30))) <= 4
    assert not repeats, "a model that repeats itself would agree with anything"
    model = served(family, max_batch=3, page=page, kv_tokens=768)
    as_loaded = replace(model, module=probe(make(family), VOCABULARY).module)
    core = EngineCore(as_loaded, step_target_s=1e-9)
    jobs = {f"r{n}": (5 + 17 * n % 70, n, 6 + 5 * n % 17) for n in range(9)}
    outputs = []
    for name, (size, salt, count) in jobs.items():
        requested = greedy(max_new_tokens=count)
        core.submit(prepared_request(name, prompt(size, salt=salt), requested))
        outputs += core.step() + core.step()
    core.cancel("r4")
    outputs += run_out(core)
    assert end_of(outputs, "r4").reason is FinishReason.CANCELLED
    for name, (size, salt, count) in jobs.items():
        if name != "r4":
            got, expected = tokens_of(outputs, name), written_by(family, size, salt, count)
            assert_same_up_to_ties(reference_of(family), prompt(size, salt=salt), got, expected)


@pytest.mark.skipif(not DEMO_MODEL.is_dir(), reason="the demo model's checkpoint is not built")
def test_the_demo_model_says_what_generate_says_alone_and_in_a_full_batch() -> None:
    model = load(EngineOptions(model=str(DEMO_MODEL), device="cpu", dtype="float32", max_batch=6))
    reference = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32).eval()
    questions = [
        "Hello!",
        "Count from 1 to 30.",
        "What is 3 + 4?",
        "Tell me a story.",
        "My name is Ada.",
        "Hi",
    ]
    prompts = [
        model.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in questions
    ]
    core = EngineCore(model)
    outputs = run_out(
        core,
        *(prepared_request(str(n), tokens, greedy(max_new_tokens=60)) for n, tokens in enumerate(prompts)),
    )
    for n, tokens in enumerate(prompts):
        expected = generated(reference, tokens, 60)
        written = [token for token in expected if token not in model.eos_ids]
        assert_same_up_to_ties(reference, tokens, tokens_of(outputs, str(n)), written)
        assert end_of(outputs, str(n)).generated_tokens == len(expected)
