"""What is told of how likely tokens were is what the model computed, alone and in a full batch, and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from engine.execution.executor import LaunchedStep
from engine.execution.sampler import VERY_UNLIKELY, scores_of
from engine.messages import ChosenToken, Chunk, Output
from engine.scheduling.core import EngineCore
from engine.step_layout import Span
from engine.text.reply_text import PreparedRequest, SamplingParams
from tests.engine.tiny_models import (
    GREEDY,
    Numbers,
    core_of,
    end_of,
    greedy,
    make,
    prepared_request,
    prompt,
    run_out,
    served,
    tokens_of,
)

CLOSE = 1e-4
HOT = greedy(do_sample=True, temperature=1.7, top_p=0.9, top_k=40, repetition_penalty=1.3, seed=3)


def scored(request_id: str, tokens: Sequence[int], sampling: SamplingParams, top: int) -> PreparedRequest:
    """A request that asks for the scores of its tokens."""
    return prepared_request(
        request_id, tokens, msgspec.structs.replace(sampling, top_logprobs=top), Numbers(scored=True)
    )


def entries_of(outputs: Sequence[Output], request_id: str) -> list[ChosenToken]:
    chunks = [o for o in outputs if isinstance(o, Chunk) and o.request_id == request_id]
    return [one for chunk in chunks for one in chunk.logprobs]


@torch.inference_mode()
def assert_as_computed(
    module: PreTrainedModel, tokens: Sequence[int], entries: Sequence[ChosenToken], top: int
) -> None:
    """By one plain forward pass over the prompt and its reply."""
    reply = [int(one.chosen.token) for one in entries]
    given = torch.tensor([[*tokens, *reply]], device=module.device)
    logits = module(given).logits[0, len(tokens) - 1 : -1]
    expected = logits.float().log_softmax(dim=-1).cpu()
    own = expected.gather(1, torch.tensor(reply).unsqueeze(1)).squeeze(1)
    assert torch.allclose(torch.tensor([one.chosen.logprob for one in entries]), own, atol=CLOSE)
    for one, row in zip(entries, expected, strict=True):
        assert len(one.top) == top
        likeliest = torch.tensor([other.logprob for other in one.top])
        assert torch.allclose(likeliest, row.topk(top).values, atol=CLOSE)
        assert torch.allclose(likeliest, row[[int(other.token) for other in one.top]], atol=CLOSE)


@pytest.mark.parametrize("sampling", [GREEDY, HOT])
def test_each_gets_its_own_scores_and_nobody_else_gets_any(sampling: SamplingParams) -> None:
    """Before the penalty, the temperature and the limits, whatever these make of them."""
    core = EngineCore(served("llama", max_batch=4))
    jobs = {f"r{n}": (prompt(20 + 5 * n, salt=n), [None, 0, 20, None, 3, None, 1][n]) for n in range(7)}
    for name, (tokens, top) in jobs.items():
        plain = prepared_request(name, tokens, sampling)
        core.submit(plain if top is None else scored(name, tokens, sampling, top))
    outputs = run_out(core)
    for name, (tokens, top) in jobs.items():
        entries = entries_of(outputs, name)
        assert len(entries) == (0 if top is None else end_of(outputs, name).generated_tokens)
        if top is not None:
            assert_as_computed(make("llama"), tokens, entries, top)


def test_who_asks_and_who_does_not_say_the_same_token_for_token() -> None:
    def replies(*flags: bool) -> list[list[int]]:
        core = EngineCore(served("llama", max_batch=3))
        for n, is_scored in enumerate(flags):
            tokens = prompt(25, salt=n)
            core.submit(
                scored(f"r{n}", tokens, HOT, 4) if is_scored else prepared_request(f"r{n}", tokens, HOT)
            )
        outputs = run_out(core)
        return [tokens_of(outputs, f"r{n}") for n in range(len(flags))]

    nobody = replies(False, False, False)
    assert replies(True, False, True) == nobody
    assert replies(True, True, True) == nobody


def test_scores_are_the_same_where_the_device_computes_meanwhile() -> None:
    def entries(*, feeds: bool) -> list[list[ChosenToken]]:
        core = core_of(served("llama", max_batch=2), feeds=feeds)
        outputs = run_out(core, *(scored(f"r{n}", prompt(9, salt=n), HOT, n) for n in range(4)))
        return [entries_of(outputs, f"r{n}") for n in range(4)]

    assert entries(feeds=True) == entries(feeds=False)


def test_the_logits_of_who_asks_are_looked_at_before_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded step writes its logits where the last one's were."""
    core = core_of(served("llama", max_batch=2), feeds=True)
    launch, under_way = core._executor.launch, []

    def noted(spans: Sequence[Span]) -> LaunchedStep:
        under_way.append(len(core._flights))
        return launch(spans)

    monkeypatch.setattr(core._executor, "launch", noted)
    core.submit(scored("a", prompt(5), GREEDY, 2))
    run_out(core, prepared_request("b", prompt(6)))
    assert set(under_way) == {0}


def test_a_reply_that_is_computed_again_tells_each_token_once() -> None:
    """Two replies outgrow the memory: one goes back to the queue, and nothing is said twice."""
    core = EngineCore(served("llama", max_batch=2, kv_tokens=80))
    many = greedy(max_new_tokens=30)
    outputs = run_out(core, *(scored(name, prompt(20, salt=ord(name)), many, 1) for name in ("a", "b")))
    assert core.statistics().preemptions
    for name in ("a", "b"):
        entries = entries_of(outputs, name)
        assert [int(one.chosen.token) for one in entries] == tokens_of(outputs, name)
        assert_as_computed(make("llama"), prompt(20, salt=ord(name)), entries, 1)


def test_a_token_of_no_probability_is_very_unlikely_in_numbers_that_json_has() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [-torch.inf, 0.0, -torch.inf]])
    ((_, one),) = scores_of(logits, [0, 1], [0, 1], {1: 3}).items()
    assert (one.token, one.logprob, one.top[0]) == (1, 0.0, (1, 0.0))
    assert [score for _, score in one.top[1:]] == [VERY_UNLIKELY] * 2


def test_a_row_that_gave_no_token_has_no_score() -> None:
    logits = torch.tensor([[torch.nan, 0.0], [0.0, 1.0]])
    tops = {0: 1, 1: 1}
    assert list(scores_of(logits, [0, 1], [None, 1], tops)) == [1]
    assert scores_of(logits[:1], [0], [None], tops) == {}
