"""Runs a model over spans of tokens: one forward pass for all that a step computes.

Knows the module, the cache and the layout; not why these tokens run, nor what becomes of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention.interface import Paged, backend_for, gathered, keeps_latents
from engine.attention.terms import AttentionNotSupported
from engine.cache.layout import Span, StepLayout, lay_out
from engine.cache.paged_cache import PagedCache
from engine.model.fused_decoder import FusedDecoder


class Runner:
    """A model with `pages` of `page_size` tokens for keys and values."""

    def __init__(self, module: PreTrainedModel | FusedDecoder, *, pages: int, page_size: int) -> None:
        self._module = module
        self._device = module.device
        self._backend = backend_for(module.device, module.dtype)
        self.cache = PagedCache(
            pages=pages, page_size=page_size, store=self._backend.store, gathers=keeps_latents(module)
        )

    @torch.inference_mode()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Compute spans, those of a single token first. Earlier positions must have been computed.

        Returns the logits behind the last token of each span that samples, in order: (rows, vocabulary).
        Running the same spans again changes nothing.
        """
        layout = lay_out(spans, page_size=self.cache.page_size, device=self._device)
        logits = self._forward(layout)
        if len(logits) != sum(span.samples for span in spans):
            raise AttentionNotSupported(
                f"{type(self._module).__name__} can't give logits of single positions"
            )
        return logits

    def _forward(self, layout: StepLayout) -> Tensor:
        self.cache.begin(layout)
        output = self._module(
            input_ids=layout.input_ids,
            position_ids=layout.position_ids,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=0 if layout.sampled_rows is None else layout.sampled_rows,
            paged=Paged(gathered(layout) if self.cache.gathers else layout, self._backend),
        )
        return cast("Tensor", output.logits)[0]
