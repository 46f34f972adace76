"""Runs an encoder-decoder over spans. New sources are encoded together, then one forward pass serves all targets.

Both happen in one step, so running translations do not wait an extra step for a source. The scheduler bounds the
source tokens of a step. It takes the place of `engine.execution.runner`.
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
        """Compute spans; each that begins has its whole source. Returns logits as `Runner.run` does."""
        module, cache, backend = self._module, self.cache, self._backend
        step = lay_out_translations(spans, page_size=cache.page_size, device=module.device)
        if step.sources is not None:
            module.encode(step.sources, cache, backend)
        if step.own is None:
            return torch.empty(0, module.vocabulary, dtype=module.dtype, device=module.device)
        ids = step.own.input_ids if self._last is None else fed(step.own.input_ids, self._last)
        if not step.sampled:
            step.sampled = [0]  # only keys and values are wanted, so the head computes as little as possible
            return module.decode(ids[0], step, cache, backend)[:0]
        return module.decode(ids[0], step, cache, backend)
