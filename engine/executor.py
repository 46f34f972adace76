"""Computes spans and chooses their next tokens; what fails, fails for its own span alone.

Knows slots, not requests: no text, no schedule.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.devices import is_out_of_memory
from engine.loaded_model import LoadedModel
from engine.prepared import Sampling
from engine.runner import Runner
from engine.sampler import Sampler
from engine.slot_batch import Span

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a span gave no token, in words for the one who asked."""

    message: str


Outcome = int | Failure | None
"""The next token of a span, its failure, or None where none was to be chosen."""


class Executor:
    """A model with slots: keys, values and ways of choosing tokens for up to `slots` replies."""

    def __init__(self, model: LoadedModel, *, slots: int) -> None:
        self._runner = Runner(model.module, slots=slots, tokens=model.context_tokens)
        self._sampler = Sampler(slots=slots, vocabulary=model.vocabulary, device=model.device)

    def join(self, slot: int, sampling: Sampling, prompt: Sequence[int]) -> None:
        """Begin a reply in a slot, before its first span."""
        self._sampler.join(slot, sampling, prompt)

    def run(self, spans: Sequence[Span]) -> list[Outcome]:
        """Compute spans, in the order that `Runner.run` asks for, and choose the tokens of those that sample."""
        try:
            return self._compute(spans)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        log.warning("a step ran out of memory; its %d parts run one by one", len(spans))
        return [self._compute_alone(span) for span in spans]

    def _compute_alone(self, span: Span) -> Outcome:
        try:
            return self._compute([span])[0]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            return Failure("The device has too little memory for this request.")

    def _compute(self, spans: Sequence[Span]) -> list[Outcome]:
        logits = self._runner.run(spans)
        sampled = [span.slot for span in spans if span.samples]
        tokens = iter(self._sampler.sample(logits, sampled) if sampled else ())
        return [self._outcome(span.slot, next(tokens)) if span.samples else None for span in spans]

    def _outcome(self, slot: int, token: int | None) -> Outcome:
        if token is not None:
            return token
        self._runner.cache.scrub(slot)
        return Failure("The model computed values that are not numbers.")
