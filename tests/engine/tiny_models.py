"""Models with random weights, small enough to run in milliseconds, and requests for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from engine.execution.executor import LoadedModel
from engine.kv_cache import KVBudget
from engine.messages import Chunk, Finished, Output, Params
from engine.model import fused_decoder as attention
from engine.scheduling.core import EngineCore
from engine.text.detokenizer import Spelled
from engine.text.reply_text import PreparedRequest, ReplyLogprobs, ReplyText, SamplingParams
from tests.engine.conftest import small_tokenizer
from tests.engine.families import FAMILIES, VOCABULARY, WINDOW


def make(family: str) -> PreTrainedModel:
    """Return a model of a family, with the same weights each time."""
    torch.manual_seed(1)
    module = FAMILIES[family]().eval()
    module.set_attn_implementation("eager")
    return module


PAGE = 16


def served(
    family: str,
    *,
    max_batch: int = 4,
    eos_ids: frozenset[int] = frozenset(),
    kv_tokens: int = 4 * WINDOW,
    page: int = PAGE,
) -> LoadedModel:
    loaded = served_module(make(family), small_tokenizer(), max_batch, kv_tokens, page)
    return replace(loaded, name=family, eos_ids=eos_ids)


def served_module(
    module: Any, tokenizer: PreTrainedTokenizerFast, max_batch: int, kv_tokens: int, page: int = PAGE
) -> LoadedModel:
    attention.register()
    module.set_attn_implementation(attention.NAME)
    pages, vocabulary = -(-kv_tokens // page), module.config.vocab_size
    budget = KVBudget(pages, page, min(WINDOW, pages * page), 1)
    return LoadedModel("model", module, tokenizer, Params(), frozenset(), max_batch, vocabulary, budget)


class NumberDetokenizer:
    """Each token is its id. `holds`: it is held back until the next one."""

    holds = False

    def __init__(self, *, is_late: bool) -> None:
        self._is_late = is_late
        self._held = ""

    def push(self, token_id: int) -> str:
        ready, self._held = self._held, f"{token_id} "
        return ready if self._is_late else self.flush()

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def spell_number(token_id: int) -> Spelled:
    return Spelled(str(token_id), None)


class Numbers(ReplyText):
    """A reply whose text is its token ids. `holds`: each is held back until the next one. `stop`: the id that ends it."""

    def __init__(self, *, stop: int | None = None, holds: bool = False, scored: bool = False) -> None:
        logprobs = ReplyLogprobs(spell_number) if scored else None
        stops = () if stop is None else (f" {stop} ",)
        super().__init__(NumberDetokenizer(is_late=holds), stops, logprobs)


GREEDY = SamplingParams(
    max_new_tokens=8, do_sample=False, temperature=1.0, top_p=1.0, top_k=0,
    repetition_penalty=1.0, seed=None, max_time_s=None,
)  # fmt: skip


def greedy(**values: object) -> SamplingParams:
    return msgspec.structs.replace(GREEDY, **values)


LONG = greedy(max_new_tokens=WINDOW)


def core_of(model: LoadedModel, *, feeds: bool, **how: Any) -> EngineCore:
    """Return a core. `feeds`: it launches the next step before it knows the last one's tokens, as on a GPU."""
    core = EngineCore(model, **how)
    if feeds:
        core._executor.feed()
    return core


def prompt(length: int, salt: int = 0) -> list[int]:
    return [(37 * place + 11 * salt + 5) % VOCABULARY for place in range(length)]


def prepared_request(
    request_id: str,
    tokens: Sequence[int],
    sampling: SamplingParams = GREEDY,
    reply: ReplyText | None = None,
    **how: str | int,
) -> PreparedRequest:
    return PreparedRequest(request_id, tokens, sampling, reply or Numbers(), **how)  # type: ignore[arg-type]


def run_out(core: EngineCore, *requests: PreparedRequest) -> list[Output]:
    """Submit requests, step until nothing is left to do, and return all outputs."""
    for request in requests:
        core.submit(request)
    outputs: list[Output] = []
    while core.busy:
        outputs += core.step()
    return outputs


def tokens_of(outputs: Sequence[Output], request_id: str) -> list[int]:
    text = "".join(o.text for o in outputs if isinstance(o, Chunk) and o.request_id == request_id)
    return [int(number) for number in text.split()]


def end_of(outputs: Sequence[Output], request_id: str) -> Finished:
    """Return the one end of a request, which must also be its last output."""
    own = [o for o in outputs if o.request_id == request_id]
    ends = [o for o in own if isinstance(o, Finished)]
    assert len(ends) == 1
    assert own[-1] is ends[0]
    return ends[0]


def ended(core: EngineCore, request: PreparedRequest) -> Finished:
    """Serve a request until nothing is left to do, and return its end."""
    return end_of(run_out(core, request), request.request_id)


def reply_to(core: EngineCore, request: PreparedRequest) -> list[int]:
    """Serve a request until nothing is left to do, and return its reply's tokens."""
    return tokens_of(run_out(core, request), request.request_id)


def alone(tokens: Sequence[int], count: int) -> list[int]:
    """Return the greedy reply to a prompt that is served alone."""
    return reply_to(
        EngineCore(served("llama")), prepared_request("alone", tokens, greedy(max_new_tokens=count))
    )


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
