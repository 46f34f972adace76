"""Computes spans and chooses their next tokens; what fails, fails for its own span alone.

Knows slots and pages, not requests: no text, no schedule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.layout import Span
from engine.cache.pages import Copy
from engine.execution.compute_threads import ComputeThreads
from engine.execution.cuda_recording import Coming, CudaRecorder
from engine.execution.runner import Runner
from engine.model.devices import is_out_of_memory
from engine.model.fused_decoder import FusedDecoder
from engine.model.loaded_model import LoadedModel
from engine.sampling.sampler import Chooser, Sampler
from engine.sampling.scoring import Scoring
from engine.text.reply_logprobs import Scored


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a span gave no token, in words for the one who asked."""

    message: str


FEW_TOKENS = 64
"""Steps of more, and those with a part of a prompt, are computed with all threads, without asking."""


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
    chosen: Coming | None = None
    """The tokens, where they are chosen on the device while the host does other things."""


class Executor:
    """A model for up to `slots` replies at once, with the pages of its budget.

    `computes_meanwhile`: a launch returns before the device has computed, so that there is time for other things
    before its tokens are fetched. `feeds`: a span may have the token that the last step chose, before it is fetched.
    """

    def __init__(self, model: LoadedModel, *, slots: int) -> None:
        self._runner = Runner(
            model.module,
            pages=model.kv.pages,
            page_size=model.kv.page_size,
            context_tokens=model.context_tokens,
        )
        self._sampler = Sampler(slots=slots, vocabulary=model.vocabulary, device=model.device)
        self._scoring = Scoring()
        self._device = model.device
        self._most_threads = torch.get_num_threads()
        self._threads = ComputeThreads(self._most_threads) if model.device.type == "cpu" else None
        self._learns: ComputeThreads | None = None
        self.computes_meanwhile = model.device.type != "cpu"
        self.feeds = False
        if model.device.type == "cuda":
            self.feed()
        if model.device.type == "cuda" and isinstance(model.module, FusedDecoder):
            recorder = CudaRecorder(model.device)
            self._runner.record(slots, recorder.record, recorder.measure)

    def feed(self) -> None:
        """Choose tokens as soon as a step is launched, and feed them to the next one before anybody here knows them."""
        self.feeds = self.computes_meanwhile = True
        self._runner.feed(self._sampler.last)

    def join(self, slot: int, chooser: Chooser, tokens: Sequence[int]) -> None:
        """Begin a reply in a slot, or take it up again, before its first span. `tokens`: all of it so far.

        Raises OutOfMemory.
        """
        with _memory_told():
            self._sampler.join(slot, chooser, tokens)
        self._scoring.join(slot, chooser.sampling.top_logprobs)

    def copy(self, copies: Sequence[Copy]) -> None:
        """Copy pages, in order, before the next launch. Raises OutOfMemory."""
        with _memory_told():
            self._runner.cache.copy(copies)

    def launch(self, spans: Sequence[Span]) -> Launched:
        """Begin to compute spans, in the order that `Runner.run` asks for. Fetch it before the next launch, or never.

        Where it `feeds` and nobody asks for scores the next one may be launched first. Raises OutOfMemory where the device has too little: nothing was computed then, and running it again is safe.
        """
        self._set_threads(spans)
        began = time.perf_counter()
        with _memory_told():
            logits = self._runner.run(spans)
            return Launched(spans, logits, began, self._choose(spans, logits))

    def fetch(self, launched: Launched) -> list[Outcome]:
        """Choose the tokens of the spans that sample, and wait for them. Raises OutOfMemory, as `launch` does."""
        sampled = [span.slot for span in launched.spans if span.samples]
        with _memory_told():
            tokens = self._tokens(launched, sampled) if sampled else []
            scored = self._scoring.score(launched.logits, sampled, tokens)
        if not sampled and launched.chosen is not None:
            launched.chosen.numbers()  # how long it takes decides how large the next one may be
        chosen = iter(tokens)
        outcomes = [
            _outcome(span.slot, next(chosen), scored) if span.samples else None for span in launched.spans
        ]
        if self._learns:
            self._learns.observe(time.perf_counter() - launched.began)
        return outcomes

    def _choose(self, spans: Sequence[Span], logits: Tensor) -> Coming | None:
        """Have tokens chosen behind the step, where nobody has to wait for that, and brought here."""
        sampled = [span.slot for span in spans if span.samples]
        if not self.feeds:
            return None
        return Coming(self._sampler.feed(logits, sampled) if sampled else logits.new_empty(0))

    def _tokens(self, launched: Launched, sampled: Sequence[int]) -> list[int | None]:
        if launched.chosen is None:
            return self._sampler.sample(launched.logits, sampled)
        return [None if token < 0 else token for token in launched.chosen.numbers()]

    def _set_threads(self, spans: Sequence[Span]) -> None:
        """Compute with as many threads as suit a step. One with a part of a prompt has work for all of them."""
        tokens = sum(len(span.tokens) for span in spans)
        self._learns = self._threads if tokens == len(spans) <= FEW_TOKENS else None
        torch.set_num_threads(self._learns.choose(tokens) if self._learns else self._most_threads)


def _outcome(slot: int, token: int | None, scored: dict[int, Scored]) -> Outcome:
    if token is None:
        return Failure("The model computed values that are not numbers.")
    return scored.get(slot, token)


@contextmanager
def _memory_told() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(str(error)) from error
