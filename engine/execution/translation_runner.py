"""Runs an encoder-decoder over spans. New sources are encoded together, then one forward pass serves all targets.

Both happen in one step, so running translations do not wait an extra step for a source. The scheduler bounds the
source tokens of a step. It takes the place of `engine.execution.runner`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache.layout import Span, fed, lay_out
from engine.cache.paged_cache import PagedCache
from engine.cache.translation_layout import begins, lay_out_targets, source_of, target_tokens
from engine.model.cpu.encoder_decoder import CpuEncoderDecoder
from engine.model.encoder_decoder import Seq2SeqModel


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
