"""What is wrong with one request ends that request alone: eight bystanders write on, token for token."""

from __future__ import annotations

import logging

import pytest

from engine.messages import FinishReason
from engine.scheduling.core import EngineCore
from engine.text.reply_text import (
    ReplyStep,
    SamplingParams,
)
from tests.engine.bystanders import PLACES, ROOM, start, written
from tests.engine.families import VOCABULARY, WINDOW
from tests.engine.faulty_requests import POISON, Unended, hungry, poisoned
from tests.engine.tiny_models import Numbers, core_of, end_of, greedy, prepared_request, prompt, run_out


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[int]]:
    """What the bystanders write where nothing is wrong."""
    core = EngineCore(poisoned(max_batch=PLACES, kv_tokens=ROOM))
    return written(start(core) + run_out(core))


class Unspeakable(Numbers):
    """A reply whose tokens have no text."""

    def push(self, token_id: int) -> ReplyStep:
        raise UnicodeError(f"no text for {token_id}")


def how(**values: object) -> SamplingParams:
    return greedy(**values)


REFUSED = {
    "an empty prompt": (prepared_request("bad", []), "no tokens"),
    "a prompt larger than the window": (prepared_request("bad", prompt(WINDOW)), "must fit"),
    "a prompt far larger": (prepared_request("bad", prompt(50 * WINDOW)), "must fit"),
    "a token outside the vocabulary": (prepared_request("bad", [1, VOCABULARY, 2]), "outside of the vocabulary"),
    "a token below it": (prepared_request("bad", [-1]), "outside of the vocabulary"),
    "no new tokens": (prepared_request("bad", [1], how(max_new_tokens=0)), "at least 1"),
    "no numbers": (prepared_request("bad", [1, POISON, 2]), "not numbers"),
    "no numbers, sampled": (
        prepared_request("bad", [1, POISON, 2], how(do_sample=True, top_p=0.5, repetition_penalty=1.2)), "not numbers"
    ),
    "a temperature that is no number": (
        prepared_request("bad", [1, 2], how(do_sample=True, temperature=float("nan"))), "not numbers"
    ),
    "a token that has no text": (prepared_request("bad", [1, 2], reply=Unspeakable()), "text could not be made"),
    "an end that has no text": (prepared_request("bad", [1, 2], reply=Unended()), "text could not be made"),
}  # fmt: skip


ODD = {
    "a reply that outgrows the window": (prepared_request("bad", prompt(WINDOW - 20), how(max_new_tokens=10 * WINDOW)), ""),
    "temperature 0": (prepared_request("bad", prompt(5), how(temperature=0.0)), ""),
    "temperature 0, sampled": (prepared_request("bad", prompt(5), how(do_sample=True, temperature=0.0)), ""),
    "a tiny temperature": (prepared_request("bad", prompt(5), how(do_sample=True, temperature=1e-30)), ""),
    "a negative top_k": (prepared_request("bad", prompt(5), how(do_sample=True, top_k=-3, seed=1)), ""),
    "a top_p of 0": (prepared_request("bad", prompt(5), how(do_sample=True, top_p=0.0)), ""),
    "a penalty of 0": (prepared_request("bad", prompt(5), how(repetition_penalty=0.0)), "not numbers"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "feeds"), [*((case, False) for case in (*REFUSED, *ODD)), ("a token that has no text", True)]
)
def test_a_bad_request_ends_with_its_own_error_and_nobody_else_notices(
    case: str, undisturbed: dict[str, list[int]], caplog: pytest.LogCaptureFixture, *, feeds: bool
) -> None:
    bad, word = (REFUSED | ODD)[case]
    core = core_of(poisoned(max_batch=PLACES, kv_tokens=ROOM), feeds=feeds)
    with caplog.at_level(logging.CRITICAL):
        outputs = start(core)
        outputs += run_out(core, bad)
    end = end_of(outputs, "bad")
    assert end.reason is (FinishReason.ERROR if word else FinishReason.LENGTH)
    assert word in (end.error or "")
    assert written(outputs) == undisturbed


def test_a_cancel_of_a_reply_whose_rest_cannot_be_told_ends_it_and_nobody_else_notices(
    undisturbed: dict[str, list[int]],
) -> None:
    core = EngineCore(poisoned(max_batch=PLACES, kv_tokens=ROOM))
    core.submit(prepared_request("bad", prompt(10), reply=Unended()))
    outputs = start(core)
    core.cancel("bad")
    outputs += run_out(core)
    assert end_of(outputs, "bad").reason is FinishReason.CANCELLED
    assert written(outputs) == undisturbed


def test_values_that_are_no_numbers_stay_behind_in_no_slot(undisturbed: dict[str, list[int]]) -> None:
    """A request that is cancelled before its first token has left them where nothing has looked yet."""
    core = EngineCore(poisoned(max_batch=PLACES, kv_tokens=ROOM), step_target_s=1e-9)
    core.submit(prepared_request("warm", prompt(100)))  # the pace learns that it is slow
    run_out(core)
    core.submit(prepared_request("bad", [POISON] * 120))
    while core.statistics().prompt_tokens < 100 + 80:
        core.step()
    core.cancel("bad")
    assert end_of(core.step(), "bad").reason is FinishReason.CANCELLED
    assert written(start(core) + run_out(core)) == undisturbed


@pytest.mark.parametrize(("reply", "feeds"), [(Numbers, False), (Numbers, True), (Unended, False)])
def test_a_step_without_enough_memory_ends_the_newest_alone_even_where_its_text_fails_as_well(
    reply: type[Numbers], undisturbed: dict[str, list[int]], caplog: pytest.LogCaptureFixture, *, feeds: bool
) -> None:
    model = poisoned(max_batch=PLACES, kv_tokens=ROOM)
    model.module.get_input_embeddings().register_forward_pre_hook(hungry)
    core = core_of(model, feeds=feeds)
    with caplog.at_level(logging.CRITICAL):
        outputs = start(core)
        outputs += run_out(core, prepared_request("bad", [POISON] * 5, reply=reply()))
    assert end_of(outputs, "bad").reason is FinishReason.ERROR
    assert written(outputs) == undisturbed
