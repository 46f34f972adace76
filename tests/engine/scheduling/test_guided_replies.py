"""Replies that are held to formats end as their format allows, and nobody beside them notices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace

import jsonschema
import msgspec
import pytest

from engine.execution.guide import Guide
from engine.messages import (
    ErrorCode,
    Finished,
    FinishReason,
    Format,
    Grammar,
    JsonSchema,
    Output,
    Regex,
)
from engine.scheduling.core import EngineCore
from engine.text.reply_text import PreparedRequest, SamplingParams
from tests.engine.bystanders import NAMES, PLACES, ROOM, start, written
from tests.engine.constrained import CITIES, CITY, SAMPLED, constrained_request, ids_of, served, text_of
from tests.engine.scheduling.test_scoring import entries_of, scored
from tests.engine.tiny_models import (
    core_of,
    end_of,
    greedy,
    prepared_request,
    prompt,
    reply_to,
    run_out,
    tokens_of,
)

LETTERS = Regex("[a-f]{20,40}")


def sampled(seed: int, **more: object) -> SamplingParams:
    return msgspec.structs.replace(SAMPLED, seed=seed, **more)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list[int]]:
    """What the bystanders write where nobody has a grammar."""
    core, outputs = with_bystanders()
    return written(outputs + run_out(core))


def with_bystanders(*requests: PreparedRequest, feeds: bool = False) -> tuple[EngineCore, list[Output]]:
    core = core_of(served(max_batch=PLACES, kv_tokens=ROOM), feeds=feeds)
    outputs = start(core)
    for request in requests:
        core.submit(request)
    return core, outputs


def test_replies_with_and_without_formats_share_a_batch(undisturbed: dict[str, list[int]]) -> None:
    core, outputs = with_bystanders(
        constrained_request(CITIES, "schema", prompt(9), sampled(5)),
        constrained_request(LETTERS, "letters", prompt(9), GREEDY_LONG),
        constrained_request(
            JsonSchema('{"type":"array","items":{"enum":[1,2]},"maxItems":9}'), "list", prompt(3), sampled(6)
        ),
    )
    outputs += run_out(core)
    assert written(outputs) == undisturbed
    jsonschema.validate(json.loads(text_of(outputs, "schema")), json.loads(CITY))
    assert 20 <= len(text_of(outputs, "letters")) <= 40
    assert {*json.loads(text_of(outputs, "list"))} <= {1, 2}


GREEDY_LONG = greedy(max_new_tokens=60)


def test_a_reply_of_full_length_that_is_complete_ends_as_such() -> None:
    """And one that is not by then is never passed off as valid."""
    for most, reason in ((5, FinishReason.STOP), (4, FinishReason.LENGTH)):
        core = EngineCore(served())
        outputs = run_out(
            core, constrained_request(Regex("[xyz]{5}"), "a", prompt(5), sampled(1, max_new_tokens=most))
        )
        end = end_of(outputs, "a")
        assert (end.reason, end.generated_tokens, len(text_of(outputs, "a"))) == (reason, most, most)


def test_an_end_token_ends_a_reply_where_its_grammar_may_end() -> None:
    (end_token,) = served().eos_ids
    likely = sampled(2, logit_bias=((end_token, 90.0),))
    for how, letters in ((likely, 3), (msgspec.structs.replace(likely, min_tokens=6), 6)):
        core = EngineCore(served())
        outputs = run_out(core, constrained_request(Regex("[xyz]{3,}"), "a", prompt(5), how))
        assert end_of(outputs, "a").reason is FinishReason.STOP
        assert len(tokens_of(outputs, "a")) == letters


def test_end_tokens_that_are_ignored_still_end_what_a_grammar_ends() -> None:
    (end_token,) = served().eos_ids
    how = sampled(2, logit_bias=((end_token, 90.0),), ignore_eos=True, max_new_tokens=9)
    core = EngineCore(served())
    core.submit(constrained_request(Regex("[a-z]{3,}"), "guided", prompt(5), how))
    outputs = run_out(core, prepared_request("free", prompt(5), how))
    assert end_of(outputs, "guided").reason is FinishReason.STOP
    assert (end_of(outputs, "free").reason, end_of(outputs, "free").generated_tokens) == (
        FinishReason.LENGTH,
        9,
    )


def test_a_reply_that_is_preempted_in_the_middle_of_its_grammar_goes_on_from_there() -> None:
    """Two replies outgrow the memory: one goes back to the queue, and its grammar with it."""
    core = EngineCore(served(max_batch=2, kv_tokens=96))
    formats = {"a": Regex("a[bc]{24}d"), "b": Regex("w[xy]{24}z")}
    outputs = run_out(
        core,
        *(
            constrained_request(requested, name, prompt(24, salt=n), sampled(n, max_new_tokens=60))
            for n, (name, requested) in enumerate(formats.items())
        ),
    )
    assert core.statistics().preemptions
    for n, (name, requested) in enumerate(formats.items()):
        alone = EngineCore(served())
        assert tokens_of(outputs, name) == tokens_of(
            run_out(
                alone, constrained_request(requested, name, prompt(24, salt=n), sampled(n, max_new_tokens=60))
            ),
            name,
        )
        assert end_of(outputs, name).reason is FinishReason.STOP


IMPOSSIBLE: dict[str, tuple[Format, str]] = {
    "control tokens": (Grammar('start: "ab" <|call|>'), "control tokens"),
    "too many ways": (
        Grammar(
            "\n".join(
                [
                    'start: "ab" (' + "|".join(f"r{n}" for n in range(2500)) + ")",
                    *[f'r{n}: "{n:05}"' for n in range(2500)],
                ]
            )
        ),
        "items",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_grammar_that_cannot_be_followed_any_further_ends_its_reply_alone(
    case: str, undisturbed: dict[str, list[int]]
) -> None:
    requested, why = IMPOSSIBLE[case]
    core, outputs = with_bystanders(constrained_request(requested, "bad", prompt(9), sampled(1)))
    outputs += run_out(core)
    end = end_of(outputs, "bad")
    assert (end.reason, end.error_code) == (FinishReason.ERROR, ErrorCode.BAD_PARAMS)
    assert why in (end.error or "")
    assert text_of(outputs, "bad") in {"a", "ab"}
    assert written(outputs) == undisturbed


class Waiting(Guide):
    """A guide whose masks come once they are let go."""

    goes_on = threading.Event()

    def advance(self, token: int, hands: object) -> None:
        assert self.goes_on.wait(60)
        super().advance(token, hands)  # type: ignore[arg-type]


@pytest.fixture
def masks_wait(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    Waiting.goes_on.clear()
    monkeypatch.setattr("engine.execution.guide.Guide", Waiting)
    yield Waiting.goes_on
    Waiting.goes_on.set()


@pytest.mark.parametrize("feeds", [False, True])
def test_nobody_waits_for_a_mask_that_is_late_but_its_own_reply(
    masks_wait: threading.Event, undisturbed: dict[str, list[int]], *, feeds: bool
) -> None:
    """It sits out the steps in which its mask is not there, and then says what it says where nothing is late."""
    core, outputs = with_bystanders(constrained_request(CITIES, "slow", prompt(9), sampled(5)), feeds=feeds)
    while not all(any(isinstance(o, Finished) and o.request_id == name for o in outputs) for name in NAMES):
        outputs += core.step()
    assert len(tokens_of(outputs, "slow")) == 1
    assert written(outputs) == undisturbed
    masks_wait.set()
    outputs += run_out(core)
    alone = EngineCore(served())
    assert tokens_of(outputs, "slow") == reply_to(
        alone, constrained_request(CITIES, "slow", prompt(9), sampled(5))
    )


def test_a_request_that_comes_while_a_mask_is_waited_for_begins_at_once(masks_wait: threading.Event) -> None:
    """Though nobody else was in the step."""
    core = EngineCore(served())
    core.submit(constrained_request(CITIES, "slow", prompt(9), sampled(5)))
    outputs = core.step() + core.step() + core.step()
    core.submit(prepared_request("plain", prompt(5)))
    while not any(isinstance(o, Finished) for o in outputs):
        outputs += core.step()
    assert end_of(outputs, "plain").reason is FinishReason.LENGTH
    masks_wait.set()
    assert end_of(outputs + run_out(core), "slow").reason is FinishReason.STOP


def test_a_reply_whose_mask_is_late_can_be_cancelled(masks_wait: threading.Event) -> None:
    core, outputs = with_bystanders(constrained_request(CITIES, "slow", prompt(9), sampled(5)))
    while not tokens_of(outputs, "slow"):
        outputs += core.step()
    outputs += core.step()
    core.cancel("slow")
    outputs += core.step()
    assert end_of(outputs, "slow").reason is FinishReason.CANCELLED
    masks_wait.set()
    run_out(core)


def test_the_scores_of_tokens_stay_the_models_own() -> None:
    """Before its mask, and whatever is added to its logits; rows of one batch differ in rounding."""
    free = EngineCore(served())
    tokens = prompt(9)
    one = sampled(4, max_new_tokens=1)
    biased = msgspec.structs.replace(one, logit_bias=((ids_of("a")[0], 100.0),))
    guided = replace(
        scored("guided", tokens, one, 5), grammar=constrained_request(CITIES, "", tokens).grammar
    )
    outputs = run_out(
        free,
        *(
            request
            for request in (scored("free", tokens, one, 5), scored("biased", tokens, biased, 5), guided)
        ),
    )
    free_top, *others = (entries_of(outputs, name)[0].top for name in ("free", "biased", "guided"))
    for top in others:
        assert [entry.token for entry in top] == [entry.token for entry in free_top]
        scores = [entry.logprob for entry in free_top]
        assert [entry.logprob for entry in top] == pytest.approx(scores, abs=1e-4)
    assert text_of(outputs, "guided") == "{"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"logit_bias": ((10_000, 1.0),)}, "token ids"),
        ({"logit_bias": ((-1, 1.0),)}, "token ids"),
        ({"logit_bias": ((1, float("nan")),)}, "values from"),
        ({"logit_bias": tuple((1, 0.0) for _ in range(301))}, "300 entries"),
        ({"min_p": 1.5}, "min_p"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"min_tokens": 90}, "min_tokens"),
    ],
)
def test_values_that_there_are_none_of_end_their_request_alone(wrong: dict[str, object], why: str) -> None:
    core = EngineCore(served())
    core.submit(prepared_request("good", prompt(5)))
    outputs = run_out(core, prepared_request("bad", prompt(5), sampled(1, **wrong)))
    end = end_of(outputs, "bad")
    assert (end.reason, end.error_code) == (FinishReason.ERROR, ErrorCode.BAD_PARAMS)
    assert why in (end.error or "")
    assert end_of(outputs, "good").reason is FinishReason.LENGTH
