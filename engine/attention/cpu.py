"""Attention over pages on a CPU, by C kernels: one for decode steps, one for prompts."""

from __future__ import annotations

from torch import Tensor

from engine.attention import cpu_kernels
from engine.attention.backend import AttentionParams
from engine.attention.reference import Reference
from engine.cache.layout import StepLayout
from engine.cache.paged_cache import LayerPages


class Cpu(Reference):
    """See `engine.attention.backend.Backend`. Elements are bfloat16 or float32."""

    def __init__(self) -> None:
        self._prompts = cpu_kernels.PromptAttention()

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: AttentionParams) -> Tensor:
        """See `Backend`."""
        rows = step.decode_rows
        if rows == len(queries):
            return cpu_kernels.attend(queries, layer, step.tables, step.lengths, terms)
        mixed = queries.new_zeros(*queries.shape[:2], layer.values.shape[3])
        if rows:
            cpu_kernels.attend(
                queries[:rows], layer, step.tables[:rows], step.lengths[:rows], terms, out=mixed[:rows]
            )
        for table, (start, stop) in zip(step.tables[rows:], step.spans[rows:], strict=True):
            own = slice(rows, rows + stop - start)
            self._prompts.attend(queries[own], layer, table, start, terms, out=mixed[own])
            rows = own.stop
        return mixed
