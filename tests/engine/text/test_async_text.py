"""Text is made while the device computes the next step: the same text as when it is made at once, to the token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.executor import LaunchedStep, LoadedModel, Outcome, OutOfMemory
from engine.messages import Chunk, Finished, FinishReason, Output
from engine.scheduling.core import EngineCore
from engine.step_layout import Span
from engine.text.reply_text import PreparedRequest, ReplyStep, ReplyText
from tests.engine.faulty_requests import POISON, Broken, hungry
from tests.engine.tiny_models import (
    GREEDY,
    LONG,
    Clock,
    Numbers,
    end_of,
    prepared_request,
    prompt,
    run_out,
    served,
    tokens_of,
)

HOT = msgspec.structs.replace(GREEDY, do_sample=True, temperature=1.5, top_p=0.9)


def async_core(model: LoadedModel, *, clock: Clock | None = None) -> EngineCore:
    """A core that launches the next step before it knows the last one's tokens, as on a GPU."""
    core = EngineCore(model) if clock is None else EngineCore(model, clock=clock)
    core._executor.feed()
    return core


@pytest.fixture
def core() -> EngineCore:
    return async_core(served("llama", max_batch=2))


def chunks_by_request(outputs: Sequence[Output]) -> dict[str, tuple[list[tuple[str, int]], Finished]]:
    """Each request's chunks, with their tokens, and its end."""
    return {
        name: (
            [(o.text, o.tokens) for o in outputs if isinstance(o, Chunk) and o.request_id == name],
            end_of(outputs, name),
        )
        for name in dict.fromkeys(o.request_id for o in outputs)
    }


class Letters:
    """A detokenizer of real text: one letter or space a token."""

    def push(self, token_id: int) -> str:
        return "abcd efgh"[token_id % 9]

    def flush(self) -> str:
        return ""


requests = st.builds(
    dict,
    length=st.integers(1, 40),
    new_tokens=st.integers(1, 12),
    seed=st.none() | st.integers(0, 5),
    how=st.sampled_from(["plain", "holds", "stop string", "stop token"]),
)


def make_request(number: int, length: int, new_tokens: int, seed: int | None, how: str) -> PreparedRequest:
    limits = msgspec.structs.replace(GREEDY if seed is None else HOT, max_new_tokens=new_tokens, seed=seed)
    request = prepared_request(f"r{number}", prompt(length, number), limits, Numbers(holds=how == "holds"))
    if how == "stop string":
        return dataclasses.replace(request, reply=ReplyText(Letters(), ["ab", "d", "e f"]))
    return request


@settings(max_examples=25)
@given(st.lists(requests, min_size=1, max_size=6), st.frozensets(st.integers(0, 250), max_size=25))
def test_whatever_is_asked_each_gets_the_same_text_and_the_same_end(
    jobs: list[dict[str, object]], ends: frozenset[int]
) -> None:
    def texts(make: Callable[[LoadedModel], EngineCore]) -> object:
        core = make(served("llama", max_batch=3, eos_ids=ends, kv_tokens=150))
        for number, one in enumerate(jobs):
            core.submit(make_request(number, **one))  # type: ignore[arg-type]
        return chunks_by_request(run_out(core))

    assert texts(async_core) == texts(EngineCore)


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_a_cancel_is_told_at_once_and_nothing_is_started_for_it_any_more(
    core: EngineCore, steps: int
) -> None:
    core.submit(prepared_request("a", prompt(5), LONG))
    core.submit(prepared_request("b", prompt(5)))
    outputs = [output for _ in range(steps) for output in core.step()]
    core.cancel("a")
    outputs += (last := core.step())
    assert [type(o) for o in last] == [Finished]
    outputs += run_out(core)
    end = end_of(outputs, "a")
    assert (end.reason, end.steps_after) == (FinishReason.CANCELLED, 0)
    assert end.generated_tokens == len(tokens_of(outputs, "a")) == max(0, steps - 1)
    assert len(tokens_of(outputs, "b")) == 8


def test_a_step_in_flight_is_nothing_to_the_next_request_of_the_same_name(core: EngineCore) -> None:
    core.submit(prepared_request("b", prompt(5), LONG))
    for n in (1, 2):
        core.submit(prepared_request("a", prompt(9, n)))
        core.step()
        core.step()
        core.cancel("a")
        core.step()
    core.submit(prepared_request("a", prompt(7)))
    core.cancel("b")
    assert len(tokens_of(run_out(core), "a")) == 8


def test_time_that_runs_out_ends_what_is_in_flight() -> None:
    clock = Clock()
    core = async_core(served("llama"), clock=clock)
    core.submit(
        prepared_request("a", prompt(5), msgspec.structs.replace(LONG, max_time_s=2.0), Numbers(holds=True))
    )
    outputs = core.step() + core.step() + core.step()
    clock.now = 2.0
    outputs += core.step()
    end = end_of(outputs, "a")
    assert (end.reason, end.generated_tokens, len(tokens_of(outputs, "a"))) == (FinishReason.TIMEOUT, 2, 2)
    assert not core.busy


def test_what_was_told_is_taken_up_by_the_next_turn(core: EngineCore) -> None:
    tokens = prompt(40)
    core.submit(prepared_request("a", tokens, LONG))
    outputs = [output for _ in range(6) for output in core.step()]
    core.cancel("a")
    outputs += core.step()
    again = [*tokens, *tokens_of(outputs, "a"), *prompt(6, salt=3)]
    core.submit(prepared_request("b", again))
    outputs = run_out(core)
    plain = EngineCore(served("llama"))
    plain.submit(prepared_request("b", again))
    assert end_of(outputs, "b").cached_tokens == 44
    assert tokens_of(outputs, "b") == tokens_of(run_out(plain), "b")


def test_no_numbers_in_a_step_that_nobody_waited_for_harm_nobody() -> None:
    model = served("llama", max_batch=1)
    with torch.no_grad():
        model.module.lm_head.weight.zero_()  # all tokens are alike, so that the first one is chosen
        model.module.get_input_embeddings().weight[0] = torch.nan
    core = async_core(model)
    core.submit(prepared_request("a", prompt(5)))
    core.step()
    core.step()
    core.cancel("a")
    core.step()
    core.submit(prepared_request("b", prompt(3), msgspec.structs.replace(GREEDY, max_new_tokens=1)))
    assert end_of(run_out(core), "b").reason is FinishReason.LENGTH


def test_a_request_for_which_memory_is_too_small_fails_alone_with_the_others_text_told() -> None:
    model = served("llama", max_batch=2)
    model.module.get_input_embeddings().register_forward_pre_hook(hungry)
    core = async_core(model)
    core.submit(prepared_request("good", prompt(5)))
    outputs = core.step() + core.step()
    core.submit(prepared_request("bad", [1, POISON, 2]))
    outputs += run_out(core)
    assert "memory" in (end_of(outputs, "bad").error or "")
    assert len(tokens_of(outputs, "good")) == 8


def test_a_step_that_runs_out_of_memory_at_its_end_is_computed_again(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = EngineCore(served("llama"))
    for one in (plain, core):
        one.submit(prepared_request("a", prompt(5)))
    sample, failures = core._executor._sampler.sample, [torch.OutOfMemoryError("no room")]

    def short_of_memory(logits: torch.Tensor, slots: Sequence[int]) -> list[int | None]:
        if failures:
            raise failures.pop()
        return sample(logits, slots)

    core.submit(prepared_request("b", prompt(6)))
    outputs = core.step()
    monkeypatch.setattr(core._executor._sampler, "sample", short_of_memory)
    outputs += run_out(core)
    assert tokens_of(outputs, "a") == tokens_of(run_out(plain), "a")
    assert len(tokens_of(outputs, "b")) == 8


class BreaksLater(Broken):
    def __init__(self) -> None:
        super().__init__()
        self._pushed = 0

    def push(self, token_id: int) -> ReplyStep:
        self._pushed += 1
        return Numbers.push(self, token_id) if self._pushed < 3 else super().push(token_id)


def test_a_reply_whose_text_cannot_be_made_fails_alone(core: EngineCore) -> None:
    core.submit(prepared_request("bad", prompt(5), reply=BreaksLater()))
    core.submit(prepared_request("good", prompt(5)))
    outputs = run_out(core)
    assert (end_of(outputs, "bad").reason, len(tokens_of(outputs, "bad"))) == (FinishReason.ERROR, 2)
    assert len(tokens_of(outputs, "good")) == 8


def test_a_step_whose_tokens_cannot_be_fetched_is_computed_again(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = EngineCore(served("llama"))
    for one in (plain, core):
        one.submit(prepared_request("a", prompt(5)))
        one.submit(prepared_request("b", prompt(6)))
    fetch, failures = core._executor.fetch, [OutOfMemory("no room")]

    def short_of_memory(launched: LaunchedStep) -> list[Outcome]:
        if failures and len(launched.spans) == 2:
            raise failures.pop()
        return fetch(launched)

    monkeypatch.setattr(core._executor, "fetch", short_of_memory)
    expected, outputs = run_out(plain), run_out(core)
    assert not failures
    for name in ("a", "b"):
        assert tokens_of(outputs, name) == tokens_of(expected, name)


def test_the_next_step_is_launched_before_the_last_ones_tokens_are_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = async_core(served("llama"))
    launch, fetch, order = core._executor.launch, core._executor.fetch, []

    def noted_launch(spans: Sequence[Span]) -> LaunchedStep:
        order.append("launch")
        return launch(spans)

    def noted_fetch(launched: LaunchedStep) -> list[Outcome]:
        order.append("fetch")
        return fetch(launched)

    monkeypatch.setattr(core._executor, "launch", noted_launch)
    monkeypatch.setattr(core._executor, "fetch", noted_fetch)
    core.submit(prepared_request("a", prompt(5), msgspec.structs.replace(GREEDY, max_new_tokens=3)))
    run_out(core)
    assert order == ["launch", "launch", "fetch", "launch", "fetch", "fetch"]
