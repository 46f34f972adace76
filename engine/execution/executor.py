"""Computes spans and chooses their next tokens. If one span fails, the others continue.

Knows slots and pages, not requests: no text, no schedule. A runner does the forward pass; it does not know why these tokens
run, or what becomes of the logits.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from engine.execution.guide import Deferred, Guide, MaskWorkers, SpanFailure
from engine.execution.sampler import Sampler, SamplerState, scores_of
from engine.grammar import GrammarCompiler, GrammarSource
from engine.kv_cache import KVBudget, PageCopy, PagedCache
from engine.messages import Languages, ModelFacts, Params
from engine.model.attention import AttentionNotSupported
from engine.model.cpu.decoder import CpuModel, is_known
from engine.model.cuda.graphs import CudaRecorder, DecodeGraphs, PendingTokens, Record
from engine.model.devices import is_out_of_memory, sent
from engine.model.encoder_decoder import EncoderDecoder
from engine.model.fused_decoder import FusedDecoder, Paged, backend_for, gathered, keeps_latents
from engine.step_layout import (
    Span,
    StepLayout,
    fed,
    image_rows,
    lay_out,
    lay_out_targets,
    sources_of,
    target_tokens,
)
from engine.text.reply_text import SamplingParams, ScoredToken
from engine.vision.tower import VisionConfig, replaced

PATIENCE = 0.1
"""While other replies wait for their tokens, a step waits for masks at most this share of the time it took so far."""
LEAST_PATIENCE_S = 0.001

ALONE_PATIENCE_S = 0.02
"""Seconds to wait for a first mask if all spans need one: few, since others may join or leave, and output must be sent."""

CUDA_PATIENCE_S = 0.003
"""Seconds to wait for masks with a CUDA device, which computes the step meanwhile."""


class Executor:
    """Runs a model for up to `slots` replies at once, with the pages of its budget.

    `feeds`: a launch returns before the device has computed, and a span may use the token that the last step chose before
    that token is fetched.
    """

    def __init__(self, model: LoadedModel, *, slots: int) -> None:
        pages, size = model.kv.pages, model.kv.page_size
        self._runner = (
            TranslationRunner(model.module, pages=pages, page_size=size)
            if isinstance(model.module, EncoderDecoder)
            else Runner(model.module, pages=pages, page_size=size, context_tokens=model.context_tokens)
        )
        self._sampler = Sampler(
            slots=slots, vocabulary=model.vocabulary, device=model.device, ends=model.eos_ids
        )
        self._guides = MaskWorkers(model.grammars) if model.grammars is not None else None
        self._guided: dict[int, Guide] = {}
        self._tops: dict[int, int] = {}  # how many likeliest tokens are scored, by slot
        self._device = model.device
        self._most_threads = torch.get_num_threads()
        self._threads = ComputeThreads(self._most_threads) if model.device.type == "cpu" else None
        self._learns: ComputeThreads | None = None
        self.feeds = False
        if model.device.type == "cuda":
            self.feed()
        if (
            model.device.type == "cuda"
            and isinstance(model.module, FusedDecoder)
            and isinstance(self._runner, Runner)
        ):
            self._runner.record(slots, CudaRecorder(model.device).record)

    def feed(self) -> None:
        """Choose tokens as soon as a step is launched, and feed them to the next step before the host knows them."""
        assert isinstance(self._runner, Runner)  # noqa: S101 - models that translate run on CPUs alone
        self.feeds = True
        self._runner.feed(self._sampler.last)

    def take_all_threads(self) -> None:
        """Use all threads for what is computed before the next launch."""
        torch.set_num_threads(self._most_threads)

    def guide(self, source: GrammarSource, sampling: SamplingParams) -> Guide | None:
        """Return the guide that holds a reply to its grammar; None if this model's tokenizer allows no grammars."""
        return self._guides.guide(source, min_tokens=sampling.min_tokens) if self._guides else None

    def advance(self, guide: Guide, token: int) -> None:
        """Tell a reply's guide which token the reply got."""
        if self._guides is not None:
            self._guides.advance(guide, token)

    def look_ahead(self) -> None:
        """Begin to make the masks of the next step, while other work goes on."""
        if self._guides is not None:
            self._guides.look_ahead()

    def join(
        self, slot: int, sampler_state: SamplerState, tokens: Sequence[int], *, generated: int = 0
    ) -> None:
        """Begin or resume a reply in a slot, before its first span. `tokens`: its prompt and what it has so far.

        `generated`: how many of them are the reply's own. Raises OutOfMemory.
        """
        with _out_of_memory_reported():
            self._sampler.join(slot, sampler_state, tokens, generated=generated)
        self._tops.pop(slot, None)
        if (top := sampler_state.sampling.top_logprobs) is not None:
            self._tops[slot] = top
        self._guided.pop(slot, None)
        if sampler_state.guide is not None and self._guides is not None:
            self._guided[slot] = sampler_state.guide
            self._guides.begin(sampler_state.guide)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages, in order, before the next launch. Raises OutOfMemory."""
        with _out_of_memory_reported():
            self._runner.cache.copy(copies)

    def launch(self, spans: Sequence[Span]) -> LaunchedStep:
        """Begin to compute spans, in the order that `Runner.run` requires. Fetch the step before the next launch, or never.

        Where this `feeds` and nobody asks for scores, the next step may be launched first. Raises OutOfMemory if the device
        has too little: nothing was computed then, and running the spans again is safe.
        """
        self._set_threads(spans)
        began = time.perf_counter()
        with _out_of_memory_reported():
            logits, slots, deferred = self._batch(spans, self._runner.run(spans), began)
            choose = self._sampler.feed if self.feeds else self._sampler.choose
            # A CUDA device chooses tokens after the step, and begins to send them.
            chosen = choose(logits, slots) if slots else logits.new_empty(0)
            return LaunchedStep(spans, began, logits, slots, deferred, PendingTokens(chosen))

    def fetch(self, launched_step: LaunchedStep) -> list[Outcome]:
        """Wait for the tokens of the spans that sample, and return an outcome for each span.

        Raises OutOfMemory, as `launch` does.
        """
        slots = launched_step.slots
        with _out_of_memory_reported():
            # Also if none was chosen: the time that this step takes decides how large the next one may be.
            tokens = [None if token < 0 else token for token in launched_step.chosen.numbers()]
            scored = scores_of(launched_step.logits, slots, tokens, self._tops) if self._tops else {}
        found: dict[int, Outcome] = {
            slot: SpanFailure("The model computed values that are not numbers.")
            if token is None
            else scored.get(slot, token)
            for slot, token in zip(slots, tokens, strict=True)
        }
        found.update(launched_step.deferred)
        if self._learns:
            self._learns.observe(time.perf_counter() - launched_step.began)
        return [found[span.slot] if span.samples else None for span in launched_step.spans]

    def _batch(
        self, spans: Sequence[Span], logits: Tensor, began: float
    ) -> tuple[Tensor, list[int], dict[int, SpanFailure | Deferred]]:
        """Return the rows of a step that tokens are drawn from, their slots, and why other slots get none.

        Rows with a grammar need their masks first.
        """
        sampled = [span.slot for span in spans if span.samples]
        guides = {slot: self._guided[slot] for slot in sampled if slot in self._guided}
        if not guides or self._guides is None:
            return logits, sampled, {}
        patience_s = (
            CUDA_PATIENCE_S
            if self._device.type == "cuda"
            else max(LEAST_PATIENCE_S, PATIENCE * (time.perf_counter() - began))
        )
        first_s = ALONE_PATIENCE_S if len(guides) == len(spans) else 0.0
        self._guides.wait(guides.values(), patience_s, first_s=first_s)
        deferred = {slot: why for slot, guide in guides.items() if (why := guide.blocked) is not None}
        if not deferred:
            return logits, sampled, deferred
        rows = [row for row, slot in enumerate(sampled) if slot not in deferred]
        index = sent(torch.tensor(rows, dtype=torch.int64), self._device)
        return logits.index_select(0, index), [sampled[row] for row in rows], deferred

    def _set_threads(self, spans: Sequence[Span]) -> None:
        """Set the number of threads for a step. A step with a part of a prompt has work for all."""
        tokens = sum(len(span.tokens) for span in spans)
        self._learns = self._threads if tokens == len(spans) <= FEW_TOKENS else None
        torch.set_num_threads(self._learns.choose(tokens) if self._learns else self._most_threads)


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step on its way: logits and tokens are there, or will be once the device gets to them.

    `logits`: the rows that tokens are drawn from, of these `slots`. `deferred`: why other slots get none.
    """

    spans: Sequence[Span]
    began: float
    logits: Tensor
    slots: Sequence[int]
    deferred: Mapping[int, SpanFailure | Deferred]
    chosen: PendingTokens


class OutOfMemory(Exception):
    """The device has too little memory for a step."""


Outcome = int | ScoredToken | SpanFailure | Deferred | None
"""The next token of a span, scored if that was asked for, or why it gave none; None if it does not sample."""


@contextmanager
def _out_of_memory_reported() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(str(error)) from error


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A language model on its device, and its tokenizer: a causal one with a chat template, or one that translates.

    `defaults` has a value for every field of `Params` that a generation config can define. `eos_ids` end a reply.
    `vocabulary` counts the ids that the model can embed. `grammars`: None if replies can't be held to any.
    """

    name: str
    module: PreTrainedModel | FusedDecoder | EncoderDecoder
    tokenizer: PreTrainedTokenizerBase
    defaults: Params
    eos_ids: frozenset[int]
    max_batch: int
    vocabulary: int
    kv: KVBudget
    grammars: GrammarCompiler | None = None
    translation_config: TranslationConfig | None = None
    vision_config: VisionConfig | None = None

    @property
    def context_tokens(self) -> int:
        """The most tokens of one request, prompt included, that the window and the memory allow."""
        return self.kv.context_tokens

    @property
    def device(self) -> torch.device:
        """The device that the model runs on."""
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the model computes in."""
        return self.module.dtype

    def facts(self) -> ModelFacts:
        """Return the facts that the layers above may know."""
        return ModelFacts(
            model=self.name,
            context_tokens=self.context_tokens,
            defaults=self.defaults,
            device=str(self.device),
            dtype=str(self.dtype).removeprefix("torch."),
            max_batch=self.max_batch,
            parameters=self.module.num_parameters()
            + (0 if self.vision_config is None else self.vision_config.tower.num_parameters()),
            features=("format",) if self.grammars is not None else (),
            languages=self.translation_config.languages if self.translation_config is not None else None,
        )


@dataclass(frozen=True, slots=True)
class TranslationConfig:
    """The facts about a model that translates. `target_tokens`: the most tokens of a translation, its start tokens included.

    `source_vocabulary`: ids of sources are below it. `forced_end`: the last token of a translation of the greatest length
    is replaced by an end token.
    """

    languages: Languages
    target_tokens: int
    source_vocabulary: int
    forced_end: bool = False


PROMPT = 512
"""Tokens of the prompt that kernels are compiled with."""


class Runner:
    """A model with `pages` of `page_size` tokens for keys and values."""

    def __init__(
        self,
        module: PreTrainedModel | FusedDecoder,
        *,
        pages: int,
        page_size: int,
        context_tokens: int | None = None,
    ) -> None:
        """`context_tokens`: the tokens of the longest request, if it can't have all pages."""
        self._module = module
        self._most_pages = min(pages, -(-(context_tokens or pages * page_size) // page_size))
        self._graphs: DecodeGraphs | None = None
        self._last: Tensor | None = None
        self._device = module.device
        self._backend = backend_for(module.device, module.dtype)
        self.cache = PagedCache(
            pages=pages, page_size=page_size, store=self._backend.store, gathers=keeps_latents(module)
        )
        self._kernels = CpuModel(module) if isinstance(module, FusedDecoder) and is_known(module) else None

    def feed(self, last: Tensor) -> None:
        """From now on, take tokens that only the device knows from `last`: see `engine.step_layout.fed`."""
        self._last = last
        self._kernels = None  # they read tokens from the host

    @torch.inference_mode()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Compute spans; those of a single token must come first. Earlier positions must have been computed before.

        Returns the logits after the last token of each span that samples, in order: (rows, vocabulary).
        Running the same spans again changes nothing. Raises AttentionNotSupported.
        """
        shown = image_rows(spans)
        if self._kernels is not None and self.cache.layers and not shown:  # they read tokens, not images
            if self._kernels.decodes(spans):
                return self._kernels.decode(spans, self.cache.layers)
            if self._kernels.prefills:
                return self._kernels.prefill(spans, self.cache.layers)
        recorded = None if self._graphs is None or shown else self._graphs.run(spans)
        if recorded is not None:
            return recorded
        logits = self._forward(self._lay_out(spans), shown)
        if len(logits) != sum(span.samples for span in spans):
            raise AttentionNotSupported(
                f"{type(self._module).__name__} can't give the logits of single positions"
            )
        return logits

    def record(self, most_rows: int, record: Record) -> None:
        """Record decode steps of up to `most_rows` replies. Kernels for prompts are compiled before that."""
        graphs = DecodeGraphs(
            self._forward,
            most_rows=most_rows,
            most_pages=self._most_pages,
            page_size=self.cache.page_size,
            device=self._device,
        )
        self._try_prompt()
        graphs.record(record)
        self._graphs = graphs

    @torch.inference_mode()
    def _try_prompt(self) -> None:
        """Run a step of a prompt, in pages that nobody holds yet."""
        pages = range(max(1, self._most_pages // 2))
        tokens = min(PROMPT, len(pages) * self.cache.page_size)
        self._forward(self._lay_out([Span(0, 0, [0] * tokens, samples=True, pages=pages)]))

    def _lay_out(self, spans: Sequence[Span]) -> StepLayout:
        # CUDA kernels are compiled for the width of the block tables.
        most = self._most_pages if self._device.type == "cuda" else 0
        return lay_out(spans, page_size=self.cache.page_size, device=self._device, most_pages=most)

    def _forward(self, layout: StepLayout, shown: Sequence[tuple[int, Tensor]] = ()) -> Tensor:
        self.cache.begin(layout)
        output = self._module(
            **self._read(layout, shown),
            position_ids=layout.position_ids,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=0 if layout.sampled_rows is None else layout.sampled_rows,
            paged=Paged(gathered(layout) if self.cache.gathers else layout, self._backend),
        )
        return cast("Tensor", output.logits)[0]

    def _read(self, layout: StepLayout, shown: Sequence[tuple[int, Tensor]]) -> dict[str, Tensor]:
        """Return the module's input: tokens, or their embeddings if there are images among them."""
        ids = layout.input_ids if self._last is None else fed(layout.input_ids, self._last)
        if not shown:
            return {"input_ids": ids}
        embedding = self._module.get_input_embeddings()
        return {"inputs_embeds": replaced(embedding(ids[0]), shown).unsqueeze(0)}


class TranslationRunner:
    """A model with `pages` of `page_size` tokens for sources and targets."""

    def __init__(self, module: EncoderDecoder, *, pages: int, page_size: int) -> None:
        self._module = module
        self._backend = backend_for(module.device, module.dtype)
        self.cache = PagedCache(pages=pages, page_size=page_size, store=self._backend.store)

    @torch.inference_mode()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Compute spans; one that starts at 0 has all of its source. Returns as `Runner.run` does."""
        cache, module = self.cache, self._module
        if sources := sources_of(spans):
            layout = lay_out(sources, page_size=cache.page_size, device=module.device)
            module.encode(layout, cache, self._backend)
        targets = [span for span in spans if target_tokens(span)]
        if not targets:
            return torch.empty(0, module.vocabulary, dtype=module.dtype, device=module.device)
        step = lay_out_targets(targets, page_size=cache.page_size, device=module.device)
        wanted = len(step.sampled)
        # If only keys and values are wanted, the head computes something small.
        step.sampled = step.sampled or [0]
        return module.decode(step.own.input_ids[0], step, cache, self._backend)[:wanted]


FIRST_TRIALS = 3
"""Steps with each number of threads before one is chosen."""
LEARNING_RATE = 0.2

SHORTEST_PAUSE, LONGEST_PAUSE = 512, 4096
"""Steps between trials of other numbers of threads. The pause doubles with each trial that finds none better."""

SOON = 8
"""The first pause once fewer threads than all are chosen: short, since a moment's noise may be the reason."""

RELUCTANCE = 1.1
"""To be chosen, fewer threads than all must be faster by this factor."""

FEW_TOKENS = 64
"""Steps of more tokens, and those with a part of a prompt, are always computed with all threads."""


class _Size:
    """The times of one size of step, by number of threads: all of them first, then half of them, and so on."""

    def __init__(self, numbers: int) -> None:
        self._counts = [0] * numbers
        self._seconds = [math.inf] * numbers
        self._until_next = self._pause = SHORTEST_PAUSE

    @property
    def _best(self) -> int:
        places = range(len(self._seconds))
        return min(places, key=lambda place: self._seconds[place] * (RELUCTANCE if place else 1.0))

    def next(self) -> int:
        """Return the place of the number to use: the best one's, or that of a neighbor, to try it."""
        best = self._best
        # On many cores a single thread could hold up everyone for seconds.
        near = [place for place in (best - 1, best + 1) if 0 <= place < len(self._counts)]
        self._until_next -= 1
        for place in (best, *near):
            if self._counts[place] < FIRST_TRIALS:
                return place
        if self._until_next > 0 or not near:
            return best
        self._pause = self._until_next = min(2 * self._pause, LONGEST_PAUSE)
        return min(near, key=lambda place: self._counts[place])

    def observe(self, place: int, seconds: float) -> None:
        """Note the time of a step with the number of threads at this place."""
        before, known = self._best, self._seconds[place]
        self._counts[place] += 1
        # The first time includes what is made only once, so the second one replaces it. A new best counts fully at once.
        is_new = self._counts[place] <= 2 or seconds < known  # noqa: PLR2004
        self._seconds[place] = seconds if is_new else known + LEARNING_RATE * (seconds - known)
        if self._best != before:
            self._pause = self._until_next = SOON if self._best else SHORTEST_PAUSE


class ComputeThreads:
    """Chooses between `most` threads, half of them, a quarter and so on, separately for each size of step."""

    def __init__(self, most: int) -> None:
        self._numbers = [most >> halvings for halvings in range(most.bit_length())]
        self._sizes: defaultdict[int, _Size] = defaultdict(lambda: _Size(len(self._numbers)))
        self._trying: tuple[_Size, int] | None = None

    def choose(self, tokens: int) -> int:
        """Return the number of threads for a step of `tokens` tokens."""
        size = self._sizes[tokens.bit_length()]
        self._trying = size, size.next()
        return self._numbers[self._trying[1]]

    def observe(self, seconds: float) -> None:
        """Learn how long the step took that `choose` was last called for."""
        if self._trying is not None:
            size, place = self._trying
            size.observe(place, seconds)
