"""The whole step loop on a CUDA device that is not there: who joins, leaves, is preempted or branches costs no wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.execution import executor as executors
from engine.execution.executor import LoadedModel
from engine.kv_cache import KVBudget
from engine.messages import Chunk, Finished, FinishReason, Output, Params, Started
from engine.model.cuda.operators import Cuda
from engine.scheduling.core import EngineCore
from engine.text.reply_text import SamplingParams
from tests.engine.conftest import small_tokenizer
from tests.engine.fake_cuda import CONTEXT, PAGE, Launches, fake_cuda, llama
from tests.engine.tiny_models import prepared_request, prompt

TOKEN = 7
SAMPLED = SamplingParams(900, True, 1.0, 0.95, 0, 1.0, None, None)
MOST_SENT = 8
"""Copies to the device in a step: the input, places of rows, limits and random numbers of new ones."""


class Recorder:
    """Stands for CUDA's own recording: the same operations on the same places."""

    def __init__(self, device: torch.device) -> None:
        """Needs no stream."""

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        return run, run()


class OneFetch:
    """The one wait of a step: every reply gets the same token."""

    made = 0

    def __init__(self, numbers: Tensor) -> None:
        assert numbers.device.type == "cuda"
        type(self).made += 1
        self._count = len(numbers)

    def numbers(self) -> list[int]:
        return [TOKEN] * self._count


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executors, "backend_for", lambda _device, _dtype: Cuda(processors=132))
    monkeypatch.setattr(executors, "CudaRecorder", Recorder)
    monkeypatch.setattr(executors, "PendingTokens", OneFetch)
    with fake_cuda():
        yield


def core(*, replies: int = 8, pages: int = 64) -> EngineCore:
    module: Any = llama()
    budget = KVBudget(pages, PAGE, min(CONTEXT, pages * PAGE), 1)
    model = LoadedModel("llama", module, small_tokenizer(), Params(), frozenset(), replies, 128_256, budget)
    return EngineCore(model)


def step(running: EngineCore) -> tuple[list[Output], Launches]:
    """One step, whose only fetch is that of the tokens."""
    before = OneFetch.made
    with Launches() as launches:
        outputs = running.step()
    assert OneFetch.made <= before + 1
    assert launches.sent["fetched"] == 0
    assert launches.sent["sent"] <= MOST_SENT
    return outputs, launches


def ends_of(outputs: list[Output]) -> list[FinishReason]:
    return [output.reason for output in outputs if isinstance(output, Finished)]


@pytest.mark.usefixtures("on_cuda")
def test_replies_join_branch_and_are_cancelled_beside_chunks_of_a_prompt_without_a_wait() -> None:
    running, beginning = core(), prompt(PAGE + 40)
    for number in range(3):
        running.submit(prepared_request(f"r{number}", prompt(20 + 300 * number, number), SAMPLED))
        step(running)
    running.submit(prepared_request("trunk", beginning, SAMPLED))
    outputs = list[Output]()
    while not any(isinstance(output, Chunk) and output.request_id == "trunk" for output in outputs):
        outputs, _ = step(running)
    _, beside = step(running)
    running.cancel("trunk")
    outputs, cancelled = step(running)
    assert (ends_of(outputs), cancelled.total) == ([FinishReason.CANCELLED], 0)
    _, after = step(running)
    assert after.total <= beside.total
    running.submit(prepared_request("branch", [*beginning[:-5], 1, 2, 3], SAMPLED))
    outputs, _ = step(running)
    assert [output.cached_tokens for output in outputs if isinstance(output, Started)] == [PAGE + 35]
    computed, chunks = running.statistics().prompt_tokens, 0
    running.submit(prepared_request("prompt", prompt(6000, 1), SAMPLED))
    while running.statistics().prompt_tokens < computed + 6000:
        chunks += step(running)[1].found["midstream::attend_prompts"]
    assert chunks > 0


@pytest.mark.usefixtures("on_cuda")
def test_who_is_preempted_waits_and_begins_again_without_a_wait_of_the_device() -> None:
    running = core(pages=5)
    for name in ("first", "second"):
        running.submit(prepared_request(name, prompt(2 * PAGE - 3, len(name)), SAMPLED))
    while not running.statistics().preemptions:
        step(running)
    running.cancel("first")
    step(running)
    generated = running.statistics().generated_tokens
    while running.statistics().generated_tokens < generated + 3:
        step(running)
