"""Runs a model over spans of tokens: one forward pass for all that a step computes.

Knows the module, the cache and the layout. Does not know why these tokens run, or what becomes of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.cache.layout import (
    Span,
    StepLayout,
    begins,
    fed,
    image_rows,
    lay_out,
    lay_out_targets,
    source_of,
    target_tokens,
)
from engine.cache.paged_cache import PagedCache
from engine.model.attention import AttentionNotSupported
from engine.model.attention_interface import Paged, backend_for, gathered, keeps_latents
from engine.model.cpu.decoder import MOST_ROWS, CpuDecode, CpuModel, CpuPrefill, is_known, prefills
from engine.model.cpu.encoder_decoder import CpuEncoderDecoder
from engine.model.cuda.graphs import DecodeGraphs, Record
from engine.model.encoder_decoder import Seq2SeqModel
from engine.model.fused_decoder import FusedDecoder
from engine.vision.tower import replaced

PROMPT = 512
"""Tokens of the prompt that kernels are compiled with."""


class _WholeSteps(NamedTuple):
    """Kernels that compute whole steps on CPUs."""

    decode: CpuDecode
    prefill: CpuPrefill | None

    @classmethod
    def of(cls, module: PreTrainedModel | FusedDecoder) -> _WholeSteps | None:
        """Return the kernels for a model; None if there are none."""
        if not isinstance(module, FusedDecoder) or not is_known(module):
            return None
        model = CpuModel(module)
        return cls(CpuDecode(model), CpuPrefill(model) if prefills(module) else None)

    def for_step(self, spans: Sequence[Span]) -> CpuDecode | CpuPrefill | None:
        """Return the kernel that computes a step; None if the module's layers must."""
        if any(span.shown for span in spans):  # the kernels read tokens, not images
            return None
        decodes = len(spans) <= MOST_ROWS and all(span.samples and len(span.tokens) == 1 for span in spans)
        return self.decode if decodes else self.prefill


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
        self._kernels = _WholeSteps.of(module)

    def feed(self, last: Tensor) -> None:
        """Take tokens that only the device knows from `last` from now on: see `engine.cache.layout.fed`."""
        self._last = last
        self._kernels = None  # they read tokens from the host

    @torch.inference_mode()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Compute spans, those of a single token first. Earlier positions must have been computed before.

        Returns the logits behind the last token of each span that samples, in order: (rows, vocabulary).
        Running the same spans again changes nothing. Raises AttentionNotSupported.
        """
        if self._kernels is not None and self.cache.layers and (kernel := self._kernels.for_step(spans)):
            return kernel.run(spans, self.cache.layers)
        shown = image_rows(spans)
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

    def __init__(self, module: Seq2SeqModel, *, pages: int, page_size: int) -> None:
        self._module = module
        self._backend = module.attention()
        self._last: Tensor | None = None
        self._kernels = CpuEncoderDecoder.of(module)
        self.cache = PagedCache(pages=pages, page_size=page_size, store=self._backend.store)
        if self._kernels is not None:
            heads = self._kernels.heads
            self.cache.layer(self._kernels.layers - 1, heads, heads)

    def feed(self, last: Tensor) -> None:
        """See `Runner.feed`."""
        self._last = last
        self._kernels = None  # they read tokens on the host

    @torch.inference_mode()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Compute spans, of which those that begin have all of their source. Returns as `Runner.run` does."""
        sources = [source_of(span) for span in spans if begins(span)]
        if sources:
            self._encode(sources)
        targets = [span for span in spans if target_tokens(span)]
        if targets:
            return self._translate(targets)
        return torch.empty(0, self._module.vocabulary, dtype=self._module.dtype, device=self._module.device)

    def _encode(self, sources: Sequence[Span]) -> None:
        kernels, cache, module = self._kernels, self.cache, self._module
        if kernels is not None and kernels.encodes(sum(len(span.tokens) for span in sources)):
            kernels.encode(sources, cache.layers)
            return
        layout = lay_out(sources, page_size=cache.page_size, device=module.device)
        module.encode(layout, cache, self._backend)

    def _translate(self, spans: Sequence[Span]) -> Tensor:
        kernels, cache, module = self._kernels, self.cache, self._module
        if kernels is not None and kernels.translates(sum(map(target_tokens, spans))):
            return kernels.translate(spans, cache.layers)
        step = lay_out_targets(spans, page_size=cache.page_size, device=module.device)
        ids = step.own.input_ids if self._last is None else fed(step.own.input_ids, self._last)
        if not step.sampled:
            step.sampled = [0]  # keys and values are wanted alone; the head computes something small
            return module.decode(ids[0], step, cache, self._backend)[:0]
        return module.decode(ids[0], step, cache, self._backend)
