"""Runs an encoder-decoder over spans: sources that begin are encoded together, then one forward pass for all targets.

Both happen in one step, so that a source costs those who run no step of its own; how many tokens of sources a step takes
is the scheduler's business. See `engine.execution.runner`, whose place it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.cache.layout import Span, fed
from engine.cache.paged_cache import PagedCache
from engine.cache.sources import lay_out_translations
from engine.model.encoder_decoder import TwoHalves


class TranslationRunner:
    """A model with `pages` of `page_size` tokens for sources and targets."""

    def __init__(self, module: TwoHalves, *, pages: int, page_size: int) -> None:
        self._module = module
        self._backend = module.attention()
        self._last: Tensor | None = None
        self.cache = PagedCache(pages=pages, page_size=page_size, store=self._backend.store)

    def feed(self, last: Tensor) -> None:
        """See `Runner.feed`."""
        self._last = last

    @torch.inference_mode()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Compute spans, of which those that begin have all of their source. Returns as `Runner.run` does."""
        module, cache, backend = self._module, self.cache, self._backend
        step = lay_out_translations(spans, page_size=cache.page_size, device=module.device)
        if step.sources is not None:
            module.encode(step.sources, cache, backend)
        if step.own is None:
            return torch.empty(0, module.vocabulary, dtype=module.dtype, device=module.device)
        ids = step.own.input_ids if self._last is None else fed(step.own.input_ids, self._last)
        if not step.sampled:
            step.sampled = [0]  # keys and values are wanted alone; the head computes something small
            return module.decode(ids[0], step, cache, backend)[:0]
        return module.decode(ids[0], step, cache, backend)
