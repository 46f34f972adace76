"""Each request gets its one end, and nobody notices another's trouble, also where text is made while the device computes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.execution.executor import LaunchedStep, Outcome
from engine.kv_cache import PagedCache
from engine.messages import Chunk, Finished, FinishReason, Output, Prefilling, Queued, Started
from engine.model.cuda.graphs import PendingTokens
from engine.scheduling.core import EngineCore
from engine.step_layout import Span
from engine.text.reply_text import PreparedRequest, ReplyText
from tests.engine.faulty_requests import POISON, poisoned
from tests.engine.tiny_models import (
    GREEDY,
    LONG,
    PAGE,
    WINDOW,
    Clock,
    Numbers,
    alone,
    core_of,
    end_of,
    ended,
    greedy,
    prepared_request,
    prompt,
    run_out,
    served,
    tokens_of,
)


@pytest.fixture
def core() -> EngineCore:
    return EngineCore(served("llama", max_batch=2))


@pytest.mark.parametrize("holds", [False, True])
def test_a_reply_starts_writes_and_ends_once(core: EngineCore, *, holds: bool) -> None:
    """Text that was held back comes at a natural end, with its tokens."""
    outputs = run_out(core, prepared_request("a", prompt(5), reply=Numbers(holds=holds)))
    assert outputs[0] == Started("a", prompt_tokens=5)
    chunks = [o for o in outputs[1:-1] if isinstance(o, Chunk)]
    assert (len(chunks), len(tokens_of(outputs, "a"))) == (len(outputs) - 2, 8)
    assert sum(o.tokens for o in chunks) == 8
    end = end_of(outputs, "a")
    assert (end.reason, end.generated_tokens, end.prompt_tokens) == (FinishReason.LENGTH, 8, 5)
    assert end.steps_after is None
    assert not core.busy


@pytest.mark.parametrize("by", ["an end token", "a stop string"])
def test_what_ends_a_reply_counts_but_is_not_text(by: str) -> None:
    third = alone(prompt(5), 3)[2]
    ends, stop = (frozenset({third}), None) if by == "an end token" else (frozenset[int](), third)
    core = EngineCore(served("llama", eos_ids=ends))
    outputs = run_out(core, prepared_request("a", prompt(5), reply=Numbers(stop=stop)))
    end = end_of(outputs, "a")
    assert (end.reason, end.generated_tokens, len(tokens_of(outputs, "a"))) == (FinishReason.STOP, 3, 2)


def test_cancelled_between_the_chunks_of_its_prefill() -> None:
    core = EngineCore(served("llama"), step_target_s=1e-9)
    run_out(core, prepared_request("warm", prompt(100)))
    core.submit(prepared_request("a", prompt(100, salt=1)))
    assert core.step() == [Started("a", 100), Prefilling("a", 0.16)]
    core.cancel("a")
    end = end_of(core.step(), "a")
    assert (end.reason, end.generated_tokens, end.steps_after) == (FinishReason.CANCELLED, 0, 0)
    assert not core.busy


def test_cancelled_between_tokens_without_what_was_held_back(core: EngineCore) -> None:
    core.submit(prepared_request("a", prompt(5), LONG, Numbers(holds=True)))
    outputs = core.step() + core.step() + core.step()
    core.cancel("a")
    outputs += core.step()
    assert len(tokens_of(outputs, "a")) == 2
    assert (end_of(outputs, "a").generated_tokens, end_of(outputs, "a").steps_after) == (3, 0)


def test_a_cancel_is_told_before_anything_else_runs(core: EngineCore) -> None:
    for name in "abc":
        core.submit(prepared_request(name, prompt(5), LONG))
    core.step()
    core.cancel("c")
    core.cancel("a")
    outputs = core.step()
    assert [o.request_id for o in outputs] == ["c", "a"]
    end = end_of(outputs, "c")
    assert (end.reason, end.generated_tokens, end.steps_after) == (FinishReason.CANCELLED, 0, 0)
    assert [o.request_id for o in core.step()] == ["b"]


def test_cancels_that_find_nothing_are_ignored(core: EngineCore) -> None:
    core.cancel("unknown")
    core.submit(prepared_request("a", prompt(5)))
    core.step()
    core.cancel("a")
    core.cancel("a")
    end_of(core.step(), "a")
    core.cancel("a")
    assert not core.busy
    assert core.statistics().cancels == 1


@pytest.mark.parametrize(("running", "feeds"), [(True, False), (True, True), (False, False)])
def test_time_runs_out_in_the_queue_and_in_the_reply(*, running: bool, feeds: bool) -> None:
    clock = Clock()
    core = core_of(served("llama", max_batch=1), clock=clock, feeds=feeds)
    if not running:
        core.submit(prepared_request("first", prompt(5), LONG))
    core.submit(
        prepared_request("a", prompt(5), msgspec.structs.replace(LONG, max_time_s=2.0), Numbers(holds=True))
    )
    outputs = core.step() + core.step() + (core.step() if feeds else [])
    clock.now = 2.0
    outputs += core.step()
    end = end_of(outputs, "a")
    assert end.reason is FinishReason.TIMEOUT
    assert len(tokens_of(outputs, "a")) == end.generated_tokens == (2 if running else 0)
    assert core.busy is not running


def test_time_that_runs_out_after_the_end_is_no_second_end(core: EngineCore) -> None:
    outputs = run_out(
        core,
        prepared_request("a", prompt(5), greedy(max_time_s=1e-9, max_new_tokens=1)),
    )
    core.submit(prepared_request("a", prompt(5)))
    end_of(outputs, "a")
    assert end_of(run_out(core), "a").reason is FinishReason.LENGTH


def test_any_other_fault_of_the_device_is_not_hidden() -> None:
    model = served("llama", max_batch=2)

    def broken(_module: torch.nn.Module, _arguments: object) -> None:
        raise RuntimeError("the device is gone")

    model.module.get_input_embeddings().register_forward_pre_hook(broken)
    core = EngineCore(model)
    core.submit(prepared_request("a", prompt(5)))
    with pytest.raises(RuntimeError, match="gone"):
        core.step()


def test_statistics_count_what_was_done(core: EngineCore) -> None:
    core.submit(prepared_request("a", prompt(40)))
    core.submit(prepared_request("b", prompt(7), LONG))
    core.step()
    assert core.statistics().kv_used_bytes == 4 * PAGE
    core.cancel("b")
    run_out(core)
    facts = core.statistics()
    kept = (0, 3 * PAGE, 4 * WINDOW)
    assert (facts.kv_used_bytes, facts.kv_cached_bytes, facts.kv_total_bytes) == kept
    assert (facts.prompt_tokens, facts.generated_tokens) == (47, 9)
    assert (facts.running, facts.queued, facts.cancels, facts.steps_after_cancel) == (0, 0, 1, 0)
    assert facts.steps == 8
    assert facts.step_seconds > 0


def next_turn(outputs: list[Output], tokens: list[int], name: str = "a") -> list[int]:
    """The prompt of a turn that goes on from `tokens` and their reply."""
    return [*tokens, *tokens_of(outputs, name), *prompt(6, salt=3)]


def test_the_next_turn_takes_up_the_prompt_and_the_reply(core: EngineCore) -> None:
    tokens = prompt(40)
    again = next_turn(run_out(core, prepared_request("a", tokens)), tokens)
    outputs = run_out(core, prepared_request("b", again))
    # Of the reply's eight tokens the last one was never computed.
    assert end_of(outputs, "b").cached_tokens == 47
    assert tokens_of(outputs, "b") == alone(again, 8)
    assert core.statistics().cached_tokens == 47


@pytest.mark.parametrize("feeds", [False, True])
def test_after_a_cancel_what_was_seen_is_taken_up_and_no_more(core: EngineCore, *, feeds: bool) -> None:
    tokens = prompt(40)
    if feeds:
        core._executor.feed()
    core.submit(prepared_request("a", tokens, LONG))
    outputs = [output for _ in range(6) for output in core.step()]
    core.cancel("a")
    outputs += core.step()
    seen = tokens_of(outputs, "a")[:3]
    again = [*tokens, *seen, *prompt(6, salt=3)]
    outputs = run_out(core, prepared_request("b", again))
    assert end_of(outputs, "b").cached_tokens == 43
    assert tokens_of(outputs, "b") == alone(again, 8)


def test_another_salt_takes_up_nothing_but_what_is_shared(core: EngineCore) -> None:
    system, first, second = prompt(32), prompt(9, salt=1), prompt(9, salt=2)
    outputs = list[Output]()
    for name, rest in (("a", first), ("b", second)):
        outputs += run_out(core, prepared_request(name, [*system, *rest], cache_salt=name, shared_tokens=32))
    assert [end_of(outputs, name).cached_tokens for name in "ab"] == [0, 32]
    assert tokens_of(outputs, "b") == alone([*system, *second], 8)
    assert ended(core, prepared_request("c", [*system, *first, *first], cache_salt="c")).cached_tokens == 0


def test_a_reply_that_gives_way_goes_on_with_nothing_lost_and_the_same_random_numbers() -> None:
    hot = greedy(do_sample=True, temperature=1.5, max_new_tokens=40, repetition_penalty=1.2)

    def texts(kv_tokens: int) -> tuple[list[list[int]], int]:
        core = EngineCore(served("llama", kv_tokens=kv_tokens))
        outputs = run_out(
            core,
            *(
                prepared_request(f"r{n}", prompt(20, n), msgspec.structs.replace(hot, seed=n))
                for n in range(3)
            ),
        )
        return [tokens_of(outputs, f"r{n}") for n in range(3)], core.statistics().preemptions

    (roomy, none), (tight, some) = texts(1000), texts(130)
    assert tight == roomy
    assert none == 0
    assert some > 0


def test_waiting_is_told_by_place_and_again_when_it_changes() -> None:
    clock = Clock()
    core = EngineCore(served("llama", max_batch=1), clock=clock)
    for name in "abc":
        core.submit(prepared_request(name, prompt(5)))
    assert [o for o in core.step() if isinstance(o, Queued)] == [Queued("b", 1), Queued("c", 2)]
    clock.now = 10.0
    assert not [o for o in core.step() if isinstance(o, Queued)]
    core.cancel("b")
    core.step()
    clock.now = 20.0
    assert [o for o in core.step() if isinstance(o, Queued)] == [Queued("c", 1)]


def test_what_a_poisoned_prompt_left_is_kept_for_nobody() -> None:
    core, system = EngineCore(poisoned()), prompt(32)
    assert (
        ended(core, prepared_request("bad", [*system, POISON, 1], cache_salt="a", shared_tokens=32)).reason
        is FinishReason.ERROR
    )
    outputs = run_out(core, prepared_request("good", [*system, 1], cache_salt="b", shared_tokens=32))
    assert end_of(outputs, "good").cached_tokens == 0
    assert tokens_of(outputs, "good") == alone([*system, 1], 8)


def test_what_was_cancelled_before_its_first_token_is_not_kept_unseen() -> None:
    core = EngineCore(poisoned())
    tokens = [*prompt(60), POISON, *prompt(60, salt=1)]
    core._pace.target_s = 1e-9  # chunks of the smallest size
    core.submit(prepared_request("bad", tokens))
    for _ in range(3):
        core.step()
    core.cancel("bad")
    run_out(core)
    outputs = run_out(core, prepared_request("good", [*prompt(60), 1]))
    assert end_of(outputs, "good").cached_tokens == 0
    assert tokens_of(outputs, "good") == alone([*prompt(60), 1], 8)


def test_a_cancel_before_the_first_token_leaves_what_was_kept_of_earlier_turns() -> None:
    core, tokens = EngineCore(served("llama"), step_target_s=1e-9), prompt(40)
    outputs = run_out(core, prepared_request("a", tokens))
    again = [*next_turn(outputs, tokens), *prompt(60, salt=4)]
    core.submit(prepared_request("b", again))
    core.step()
    core.cancel("b")
    assert end_of(run_out(core), "b").generated_tokens == 0
    outputs = run_out(core, prepared_request("c", again))
    assert end_of(outputs, "c").cached_tokens == 47
    assert tokens_of(outputs, "c") == alone(again, 8)


def test_no_memory_to_copy_a_page_puts_the_newest_back_and_it_goes_on_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, tokens = EngineCore(served("llama", max_batch=2)), prompt(40)
    again = next_turn(run_out(core, prepared_request("a", tokens)), tokens)
    copy, failures = PagedCache.copy, [torch.OutOfMemoryError("no room")]

    def full(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        copy(*arguments)

    core.submit(prepared_request("beside", prompt(20, 5), greedy(max_new_tokens=30)))
    core.step()
    monkeypatch.setattr(PagedCache, "copy", full)
    outputs = run_out(core, prepared_request("b", again))
    assert failures == []
    assert core.statistics().preemptions == 1
    assert tokens_of(outputs, "b") == alone(again, 8)


@pytest.mark.usefixtures("cpu_operations")
@pytest.mark.parametrize("page", [1, 16, 256])
def test_branches_and_replies_that_are_preempted_write_what_they_write_alone(page: int) -> None:
    """Three go on from one beginning, in memory that is too small for all, and one from a page in its middle."""
    core, tokens = EngineCore(served("llama", kv_tokens=160 if page < 256 else 768, page=page)), prompt(40)
    run_out(core, prepared_request("a", tokens))
    long = greedy(max_new_tokens=40)
    jobs = {f"b{n}": [*tokens[: 40 - 3 * n], *prompt(5, 20 + n)] for n in range(3)}
    outputs = run_out(core, *(prepared_request(name, text, long) for name, text in jobs.items()))
    assert [end_of(outputs, name).cached_tokens for name in jobs] == [40, 37, 34]
    assert page == 256 or core.statistics().preemptions > 0
    for name, text in jobs.items():
        assert tokens_of(outputs, name) == alone(text, 40)


HOT = greedy(do_sample=True, temperature=1.5, top_p=0.9)


@pytest.fixture
def fed() -> EngineCore:
    return core_of(served("llama", max_batch=2), feeds=True)


def chunks_by_request(outputs: Sequence[Output]) -> dict[str, tuple[list[tuple[str, int]], Finished]]:
    """Each request's chunks, with their tokens, and its end."""
    return {
        name: (
            [(o.text, o.tokens) for o in outputs if isinstance(o, Chunk) and o.request_id == name],
            end_of(outputs, name),
        )
        for name in dict.fromkeys(o.request_id for o in outputs)
    }


class OneOfNine:
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
        return dataclasses.replace(request, reply=ReplyText(OneOfNine(), ["ab", "d", "e f"]))
    return request


@settings(max_examples=25)
@given(st.lists(requests, min_size=1, max_size=6), st.frozensets(st.integers(0, 250), max_size=25))
def test_whatever_is_asked_each_gets_the_same_text_and_the_same_end(
    jobs: list[dict[str, object]], ends: frozenset[int]
) -> None:
    def texts(*, feeds: bool) -> object:
        fed = core_of(served("llama", max_batch=3, eos_ids=ends, kv_tokens=150), feeds=feeds)
        for number, one in enumerate(jobs):
            fed.submit(make_request(number, **one))  # type: ignore[arg-type]
        return chunks_by_request(run_out(fed))

    assert texts(feeds=True) == texts(feeds=False)


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_a_cancel_is_told_at_once_and_nothing_is_started_for_it_any_more(fed: EngineCore, steps: int) -> None:
    fed.submit(prepared_request("a", prompt(5), LONG))
    fed.submit(prepared_request("b", prompt(5)))
    outputs = [output for _ in range(steps) for output in fed.step()]
    fed.cancel("a")
    outputs += (last := fed.step())
    assert [type(o) for o in last] == [Finished]
    outputs += run_out(fed)
    end = end_of(outputs, "a")
    assert (end.reason, end.steps_after) == (FinishReason.CANCELLED, 0)
    assert end.generated_tokens == len(tokens_of(outputs, "a")) == max(0, steps - 1)
    assert len(tokens_of(outputs, "b")) == 8


def test_a_step_in_flight_is_nothing_to_the_next_request_of_the_same_name(fed: EngineCore) -> None:
    fed.submit(prepared_request("b", prompt(5), LONG))
    for n in (1, 2):
        fed.submit(prepared_request("a", prompt(9, n)))
        fed.step()
        fed.step()
        fed.cancel("a")
        fed.step()
    fed.submit(prepared_request("a", prompt(7)))
    fed.cancel("b")
    assert len(tokens_of(run_out(fed), "a")) == 8


def test_no_numbers_in_a_step_that_nobody_waited_for_harm_nobody() -> None:
    model = served("llama", max_batch=1)
    with torch.no_grad():
        model.module.lm_head.weight.zero_()  # all tokens are alike, so that the first one is chosen
        model.module.get_input_embeddings().weight[0] = torch.nan
    fed = core_of(model, feeds=True)
    fed.submit(prepared_request("a", prompt(5)))
    fed.step()
    fed.step()
    fed.cancel("a")
    fed.step()
    assert (
        ended(fed, prepared_request("b", prompt(3), greedy(max_new_tokens=1))).reason is FinishReason.LENGTH
    )


@pytest.mark.parametrize("where", ["choosing", "fetching"])
def test_a_step_whose_tokens_find_no_memory_is_computed_again(
    where: str, fed: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, failures = EngineCore(served("llama")), [torch.OutOfMemoryError("no room")]
    for one in (plain, fed):
        one.submit(prepared_request("a", prompt(5)))
        one.submit(prepared_request("b", prompt(6)))
    outputs = fed.step()
    place, name = (fed._executor._sampler, "feed") if where == "choosing" else (PendingTokens, "numbers")
    done = getattr(place, name)

    def short_of_memory(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return done(*arguments)

    monkeypatch.setattr(place, name, short_of_memory)
    expected, outputs = run_out(plain), outputs + run_out(fed)
    assert not failures
    for name in ("a", "b"):
        assert tokens_of(outputs, name) == tokens_of(expected, name)


def test_the_next_step_is_launched_before_the_last_ones_tokens_are_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed = core_of(served("llama"), feeds=True)
    launch, fetch, order = fed._executor.launch, fed._executor.fetch, []

    def noted_launch(spans: Sequence[Span]) -> LaunchedStep:
        order.append("launch")
        return launch(spans)

    def noted_fetch(launched: LaunchedStep) -> list[Outcome]:
        order.append("fetch")
        return fetch(launched)

    monkeypatch.setattr(fed._executor, "launch", noted_launch)
    monkeypatch.setattr(fed._executor, "fetch", noted_fetch)
    run_out(fed, prepared_request("a", prompt(5), greedy(max_new_tokens=3)))
    assert order == ["launch", "launch", "fetch", "launch", "fetch", "fetch"]
