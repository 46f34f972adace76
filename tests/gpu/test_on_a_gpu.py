"""The engine on a CUDA device: what it says, and what a cancel costs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from engine.kv_cache import page_size
from engine.messages import Chunk, FinishReason, Output
from engine.model.attention import AttentionParams
from engine.model.cuda.operators import Cuda
from engine.scheduling.core import EngineCore
from tests.engine.model.paged import Shape, attended_by_hand, paged
from tests.engine.scheduling.test_scoring import assert_as_computed, entries_of, scored
from tests.engine.tiny_models import (
    GREEDY,
    WINDOW,
    end_of,
    make,
    prepared_request,
    prompt,
    run_out,
    tokens_of,
)
from tests.gpu.conftest import Loads

pytestmark = pytest.mark.gpu

LENGTHS = (3, 17, 40, 9, 60, 25)
"""More prompts than slots."""
NEW = 24
LONG = msgspec.structs.replace(GREEDY, max_new_tokens=NEW)


def ask_all(core: EngineCore, limits: Any = LONG) -> list[Output]:
    for number, length in enumerate(LENGTHS):
        own = msgspec.structs.replace(limits, seed=number)
        core.submit(prepared_request(f"r{number}", prompt(length, number), own))
    return run_out(core)


@torch.inference_mode()
def generated(device: torch.device, tokens: list[int]) -> list[int]:
    module: Any = make("llama").to(device)
    made = module.generate(torch.tensor([tokens], device=device), max_new_tokens=NEW, do_sample=False)
    return made[0, len(tokens) :].tolist()  # type: ignore[no-any-return]


def test_greedy_replies_side_by_side_are_those_of_generate(loaded: Loads, cuda: torch.device) -> None:
    core = EngineCore(loaded(torch.float32))
    outputs = ask_all(core)
    for number, length in enumerate(LENGTHS):
        assert tokens_of(outputs, f"r{number}") == generated(cuda, prompt(length, number))


def test_in_bfloat16_each_greedy_token_is_likeliest_up_to_what_is_rounded(
    loaded: Loads, cuda: torch.device
) -> None:
    outputs = ask_all(EngineCore(loaded(torch.bfloat16)))
    module = make("llama").to(cuda, torch.bfloat16)
    for number, length in enumerate(LENGTHS):
        tokens, reply = prompt(length, number), tokens_of(outputs, f"r{number}")
        assert len(reply) == NEW
        with torch.inference_mode():
            logits = module(torch.tensor([[*tokens, *reply]], device=cuda)).logits[0, length - 1 : -1].float()
        chosen = logits.gather(1, torch.tensor(reply, device=cuda)[:, None])[:, 0]
        assert (logits.max(dim=-1).values - chosen <= 0.05 * logits.abs().max()).all()


def test_scores_are_those_of_a_plain_forward_pass(loaded: Loads, cuda: torch.device) -> None:
    core = EngineCore(loaded(torch.float32))
    for number, length in enumerate(LENGTHS):
        core.submit(scored(f"r{number}", prompt(length, number), LONG, 5))
    outputs = run_out(core)
    module: Any = make("llama").to(cuda)
    for number, length in enumerate(LENGTHS):
        entries = entries_of(outputs, f"r{number}")
        assert len(entries) == NEW
        assert_as_computed(module, prompt(length, number), entries, 5)


def test_a_second_turn_finds_what_the_first_wrote(loaded: Loads, cuda: torch.device) -> None:
    core, tokens = EngineCore(loaded(torch.float32)), prompt(20)
    core.submit(prepared_request("a", tokens, LONG))
    again = [*tokens, *tokens_of(run_out(core), "a"), *prompt(6, salt=3)]
    core.submit(prepared_request("b", again, LONG))
    outputs = run_out(core)
    assert end_of(outputs, "b").cached_tokens == 20 + NEW - 1
    assert tokens_of(outputs, "b") == generated(cuda, again)


def test_long_contexts_attend_as_by_hand(cuda: torch.device) -> None:
    """With the heads of a model of 8 billion parameters; shorter ones are in tests/engine/model/test_cuda_kernels.py."""
    lengths, queries = (16, 4096, 4112, 4097, 8192, 1600, 15_000), (1, 1, 1, 1, 1, 512, 300)
    made, terms = Shape(heads=32, kv_heads=8, size=128), AttentionParams(128**-0.5)
    case = paged(made, lengths=lengths, queries=queries, page=page_size("cuda"), dtype=torch.bfloat16)
    processors = torch.cuda.get_device_properties(cuda).multi_processor_count
    out = Cuda(processors=processors).attend(case.queries, case.stored, case.step, terms)
    expected = attended_by_hand(case, terms)
    errors = (out.float() - expected).norm(dim=(1, 2)) / expected.norm(dim=(1, 2))
    assert float(errors.max()) < 5e-2


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_cancel_costs_at_most_a_step(loaded: Loads, steps: int) -> None:
    core = EngineCore(loaded(torch.float32))
    assert core._executor.feeds
    core.submit(prepared_request("a", prompt(5), msgspec.structs.replace(GREEDY, max_new_tokens=WINDOW)))
    core.submit(prepared_request("b", prompt(5), LONG))
    outputs = [output for _ in range(steps) for output in core.step()]
    core.cancel("a")
    outputs += run_out(core)
    end = end_of(outputs, "a")
    assert end.reason is FinishReason.CANCELLED
    assert (end.steps_after or 0) <= 1
    assert len(tokens_of(outputs, "b")) == NEW


def test_a_text_leaves_while_the_next_step_is_computed(loaded: Loads) -> None:
    core = EngineCore(loaded(torch.float32))
    core.submit(prepared_request("a", prompt(5), LONG))
    core.step()
    assert [type(output) for output in core.step()] == [Chunk]
    assert core.statistics().steps == 2


@pytest.mark.parametrize(
    "limits", [LONG, msgspec.structs.replace(LONG, do_sample=True, temperature=1.2, top_p=0.9)]
)
def test_recorded_steps_say_what_plain_ones_say(loaded: Loads, limits: Any) -> None:
    recorded, plain = EngineCore(loaded(torch.float32)), EngineCore(loaded(torch.float32))
    graphs = recorded._executor._runner._graphs
    assert graphs is not None
    assert set(graphs._recorded) == set(graphs._rows)
    plain._executor._runner._graphs = None
    ours, theirs = ask_all(recorded, limits), ask_all(plain, limits)
    for number in range(len(LENGTHS)):
        assert tokens_of(ours, f"r{number}") == tokens_of(theirs, f"r{number}")
