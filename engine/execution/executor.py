"""Computes spans and chooses their next tokens; what fails, fails for its own span alone.

Knows slots, not requests: no text, no schedule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.slot_batch import Span
from engine.cache.slots import KVState
from engine.execution.compute_threads import ComputeThreads
from engine.execution.runner import Runner
from engine.model.devices import is_out_of_memory
from engine.model.loaded_model import LoadedModel
from engine.sampling.sampler import Chooser, Sampler
from engine.sampling.scoring import Scoring
from engine.text.reply_logprobs import Scored


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a span gave no token, in words for the one who asked."""

    message: str


FEW_TOKENS = 64
"""Steps of more are computed with all threads, without asking."""


class OutOfMemory(Exception):
    """The device has too little memory for a step."""


Outcome = int | Scored | Failure | None
"""The next token of a span, scored where that was asked for; its failure; or None where none was to be chosen."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A step on its way: the logits of the spans that sample are there, or will be once the device gets to them."""

    spans: Sequence[Span]
    logits: Tensor
    began: float


class Executor:
    """A model with slots for up to `slots` replies, and the states that are kept of replies that ended.

    `computes_meanwhile`: a launch returns before the device has computed, so that there is time for other things
    before its tokens are fetched.
    """

    def __init__(self, model: LoadedModel, *, slots: int) -> None:
        self._runner = Runner(model.module, slots=slots, tokens=model.context_tokens)
        self._sampler = Sampler(slots=slots, vocabulary=model.vocabulary, device=model.device)
        self._scoring = Scoring()
        self._device = model.device
        self._states: dict[int, KVState] = {}
        self._untried: set[int] = set()
        self._most_threads = torch.get_num_threads()
        self._threads = ComputeThreads(self._most_threads) if model.device.type == "cpu" else None
        self._learns: ComputeThreads | None = None
        self.computes_meanwhile = model.device.type != "cpu"

    def join(self, slot: int, chooser: Chooser, tokens: Sequence[int]) -> None:
        """Begin a reply in a slot, or take it up again, before its first span. `tokens`: all of it so far.

        Raises OutOfMemory.
        """
        self._clean(slot)
        self._untried.add(slot)
        self._runner.cache.expect(slot, len(tokens))
        with _memory_told():
            self._sampler.join(slot, chooser, tokens)
        self._scoring.join(slot, chooser.sampling.top_logprobs)

    def is_sound(self, slot: int) -> bool:
        """Whether a token was chosen from a slot since it was joined: until then nobody saw whether it holds numbers."""
        return slot not in self._untried

    def park(self, slot: int, state: int, tokens: int) -> None:
        """Keep a copy of a slot's first `tokens` positions under the number `state`. Raises OutOfMemory."""
        with _memory_told():
            self._states[state] = self._runner.cache.copy_out(slot, tokens)

    def restore(self, slot: int, state: int, tokens: int) -> None:
        """Begin a slot with the first `tokens` positions of a kept state. Raises OutOfMemory."""
        self._clean(slot)
        with _memory_told():
            self._runner.cache.copy_in(self._states[state], slot, tokens)

    def drop(self, state: int) -> None:
        """Let a kept state go, if it was kept at all."""
        self._states.pop(state, None)

    def leave(self, slot: int, tokens: int) -> None:
        """Note that a slot that held `tokens` is free."""
        self._scoring.leave(slot)
        self._runner.cache.leave(slot, tokens)

    def launch(self, spans: Sequence[Span]) -> Launched:
        """Begin to compute spans, in the order that `Runner.run` asks for. Fetch or abandon it before the next launch.

        Raises OutOfMemory where the device has too little: nothing was computed then, and running it again is safe.
        """
        self._set_threads(sum(len(span.tokens) for span in spans))
        began = time.perf_counter()
        with _memory_told():
            return Launched(spans, self._runner.run(spans), began)

    def fetch(self, launched: Launched) -> list[Outcome]:
        """Choose the tokens of the spans that sample, and wait for them. Raises OutOfMemory, as `launch` does."""
        sampled = [span.slot for span in launched.spans if span.samples]
        with _memory_told():
            tokens = self._sampler.sample(launched.logits, sampled) if sampled else []
            scored = self._scoring.score(launched.logits, sampled, tokens)
        if not sampled:
            self._wait()
        chosen = iter(tokens)
        outcomes = [
            self._outcome(span.slot, next(chosen), scored) if span.samples else None
            for span in launched.spans
        ]
        if self._learns:
            self._learns.observe(time.perf_counter() - launched.began)
        return outcomes

    def _wait(self) -> None:
        """Wait for a step that gives no token: how long it takes decides how large the next one may be."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def abandon(self, launched: Launched) -> None:
        """Never fetch a launch. Nobody will see whether it computed numbers: its slots are cleaned before they are used."""
        self._untried.update(span.slot for span in launched.spans)

    def _set_threads(self, tokens: int) -> None:
        """Compute with as many threads as suit a step of so many tokens."""
        self._learns = self._threads if tokens <= FEW_TOKENS else None
        torch.set_num_threads(self._learns.choose(tokens) if self._learns else self._most_threads)

    def _clean(self, slot: int) -> None:
        """Zero a slot that was left before a token was chosen from it: nobody saw whether it holds numbers."""
        if slot in self._untried:
            self._untried.remove(slot)
            self._runner.cache.scrub(slot)

    def _outcome(self, slot: int, token: int | None, scored: dict[int, Scored]) -> Outcome:
        self._untried.discard(slot)
        if token is not None:
            return scored.get(slot, token)
        self._runner.cache.scrub(slot)
        return Failure("The model computed values that are not numbers.")


@contextmanager
def _memory_told() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(str(error)) from error
