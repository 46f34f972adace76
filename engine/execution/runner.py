"""Runs a model over spans of tokens: one forward pass for all that a step computes.

Knows the module, the cache and the layout; not why these tokens run, nor what becomes of the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention.attend import AttentionNotSupported
from engine.cache.slot_batch import SlotBatch, Span
from engine.cache.slots import SlotCache, commits_lazily
from engine.execution.graphs import CudaGraphs
from engine.model.cpu_decode import MOST_ROWS, CpuDecode, decodes
from engine.model.fused_decoder import FusedDecoder


def _only_decodes(spans: Sequence[Span]) -> bool:
    return len(spans) <= MOST_ROWS and all(span.samples and len(span.tokens) == 1 for span in spans)


class Runner:
    """A model with the KV slots of `slots` replies, each of up to `tokens` positions."""

    def __init__(self, module: PreTrainedModel | FusedDecoder, *, slots: int, tokens: int) -> None:
        self._module = module
        self._device = module.device
        recordable = module if self._device.type == "cuda" and isinstance(module, FusedDecoder) else None
        lazy = commits_lazily(self._device)
        roomy = isinstance(module, FusedDecoder) and module.reads_exactly
        self.cache = SlotCache(
            slots=slots, tokens=tokens, lazy=lazy, fixed=recordable is not None, roomy=roomy
        )
        self._graphs = CudaGraphs(recordable, self.cache) if recordable is not None else None
        decoding = isinstance(module, FusedDecoder) and decodes(module)
        self._decode = CpuDecode(module) if decoding and isinstance(module, FusedDecoder) else None

    @torch.inference_mode()
    def run(self, spans: Sequence[Span]) -> Tensor:
        """Compute spans, those of a single token first, by rising slot. Earlier positions must have been computed.

        Returns the logits behind the last token of each span that samples, in order: (rows, vocabulary).
        Running the same spans again changes nothing.
        """
        if self._graphs is not None and (recorded := self._graphs.run(spans)) is not None:
            return recorded
        if self._decode is not None and self.cache.layers and _only_decodes(spans):
            return self._run_at_once(self._decode, spans)
        return self._run_plainly(spans)

    def _run_at_once(self, decode: CpuDecode, spans: Sequence[Span]) -> Tensor:
        """Compute a decode step in one call. A slot is a page."""
        self.cache.reach([(span.slot, span.stop) for span in spans])
        tokens, positions = [span.tokens[0] for span in spans], [span.start for span in spans]
        return decode.run(tokens, positions, [(span.slot,) for span in spans], self.cache.layers)

    def _run_plainly(self, spans: Sequence[Span]) -> Tensor:
        batch = SlotBatch(spans, tokens=self.cache.tokens, device=self._device)
        self.cache.begin(batch)
        output = self._module(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=0 if batch.sampled_rows is None else batch.sampled_rows,
            slots=batch,
        )
        logits = cast("Tensor", output.logits)[0]
        wanted = sum(span.samples for span in spans)
        if len(logits) != wanted:
            raise AttentionNotSupported(
                f"{type(self._module).__name__} can't give logits of single positions"
            )
        return logits
