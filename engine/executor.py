"""Computes spans and chooses their next tokens; what fails, fails for its own span alone.

Knows slots, not requests: no text, no schedule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from engine.compute_threads import ComputeThreads
from engine.devices import is_out_of_memory
from engine.kv_cache import KVState
from engine.loaded_model import LoadedModel
from engine.runner import Runner
from engine.sampler import Chooser, Sampler
from engine.slot_batch import Span


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a span gave no token, in words for the one who asked."""

    message: str


FEW_TOKENS = 64
"""Steps of more are computed with all threads, without asking."""


class OutOfMemory(Exception):
    """The device has too little memory for a step."""


Outcome = int | Failure | None
"""The next token of a span, its failure, or None where none was to be chosen."""


class Executor:
    """A model with slots for up to `slots` replies, and the states that are kept of replies that ended."""

    def __init__(self, model: LoadedModel, *, slots: int) -> None:
        self._runner = Runner(model.module, slots=slots, tokens=model.context_tokens)
        self._sampler = Sampler(slots=slots, vocabulary=model.vocabulary, device=model.device)
        self._states: dict[int, KVState] = {}
        self._untried: set[int] = set()
        self._most_threads = torch.get_num_threads()
        self._threads = ComputeThreads(self._most_threads) if model.device.type == "cpu" else None

    def join(self, slot: int, chooser: Chooser, tokens: Sequence[int]) -> None:
        """Begin a reply in a slot, or take it up again, before its first span. `tokens`: all of it so far."""
        self._clean(slot)
        self._untried.add(slot)
        self._sampler.join(slot, chooser, tokens)

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
        self._runner.cache.leave(slot, tokens)

    def run(self, spans: Sequence[Span]) -> list[Outcome]:
        """Compute spans, in the order that `Runner.run` asks for, and choose the tokens of those that sample.

        Raises OutOfMemory where the device has too little: nothing was computed then, and running it again is safe.
        """
        with _memory_told(), self._computing(sum(len(span.tokens) for span in spans)):
            return self._compute(spans)

    @contextmanager
    def _computing(self, tokens: int) -> Iterator[None]:
        """Compute with as many threads as suit a step of so many tokens."""
        if self._threads is None or tokens > FEW_TOKENS:
            torch.set_num_threads(self._most_threads)
            yield
            return
        torch.set_num_threads(self._threads.choose(tokens))
        began = time.perf_counter()
        yield
        self._threads.observe(time.perf_counter() - began)

    def _compute(self, spans: Sequence[Span]) -> list[Outcome]:
        logits = self._runner.run(spans)
        sampled = [span.slot for span in spans if span.samples]
        tokens = iter(self._sampler.sample(logits, sampled) if sampled else ())
        return [self._outcome(span.slot, next(tokens)) if span.samples else None for span in spans]

    def _clean(self, slot: int) -> None:
        """Zero a slot that was left before a token was chosen from it: nobody saw whether it holds numbers."""
        if slot in self._untried:
            self._untried.remove(slot)
            self._runner.cache.scrub(slot)

    def _outcome(self, slot: int, token: int | None) -> Outcome:
        self._untried.discard(slot)
        if token is not None:
            return token
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
