"""Attention over pages on a CPU: kernels of our own for decode steps, torch's for prompts, whose pages are brought together."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import cpu_kernels
from engine.attention.reference import Reference, visible
from engine.attention.terms import Terms
from engine.cache.layout import ROWS_STEP, StepLayout
from engine.cache.paged_cache import LayerPages

QUERY_BLOCK = 256
"""Queries of a prompt that share one score matrix: it bounds memory."""

EXTENT_STEP = 64
"""Contexts are rounded up to this many positions, so that shapes, and the kernels that oneDNN keeps for them, repeat."""


class Cpu(Reference):
    """See `engine.attention.terms.Backend`. Elements are bfloat16 or float32."""

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: Terms) -> Tensor:
        """See `Backend`."""
        rows = step.decode_rows
        if rows == len(queries):
            return cpu_kernels.attend(queries, layer, step.tables, step.lengths, terms)
        mixed = queries.new_zeros(*queries.shape[:2], layer.values.shape[3])
        if rows:
            cpu_kernels.attend(
                queries[:rows], layer, step.tables[:rows], step.lengths[:rows], terms, out=mixed[:rows]
            )
        for number, (start, stop) in enumerate(step.spans[rows:], start=rows):
            own = slice(rows, rows + stop - start)
            mixed[own] = self._prompt(queries[own], layer, step, number, terms)
            rows = own.stop
        return mixed

    def _prompt(
        self, queries: Tensor, layer: LayerPages, step: StepLayout, number: int, terms: Terms
    ) -> Tensor:
        """Attend with a chunk of a prompt, (rows, heads, size), to all of its request so far."""
        start, stop = step.spans[number]
        room = -(-stop // EXTENT_STEP) * EXTENT_STEP
        keys, values = (cpu_kernels.gather(store, step.tables[number], stop, room) for store in layer)
        key = number, terms.window, terms.chunk
        if key not in step.masks:
            step.masks[key] = _bias(range(start, stop), room, terms, queries.dtype)
        bias = step.masks[key]
        blocks = [slice(row, row + QUERY_BLOCK) for row in range(0, len(queries), QUERY_BLOCK)]
        mixed = [_block(queries[rows].transpose(0, 1), keys, values, bias[rows], terms) for rows in blocks]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _bias(queries: range, extent: int, terms: Terms, dtype: torch.dtype) -> Tensor:
    """Return what is added to the scores: 0 where visible, else -inf; (queries, extent)."""
    seen = visible(torch.arange(queries.start, queries.stop), torch.arange(extent), terms)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -torch.inf)


def _block(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor, terms: Terms) -> Tensor:
    """Attend with (heads, rows, size) to (KV heads, extent, size). KV heads are never repeated: queries are stacked."""
    asked = query.shape[1]
    idle = -asked % ROWS_STEP
    if idle:
        query, bias = functional.pad(query, (0, 0, 0, idle)), functional.pad(bias, (0, 0, 0, idle))
    heads, rows, size = query.shape
    sharing = heads // len(keys)
    stacked, wide = query.reshape(len(keys), sharing * rows, size), bias.repeat(sharing, 1)
    if terms.softcap is None:
        mixed = functional.scaled_dot_product_attention(
            stacked[None], keys[None], values[None], attn_mask=wide[None, None], scale=terms.scale
        )
    else:
        capped = torch.tanh(torch.bmm(stacked * (terms.scale / terms.softcap), keys.transpose(1, 2)))
        mixed = torch.bmm(torch.softmax(capped * terms.softcap + wide, dim=-1), values)
    return mixed.reshape(heads, rows, -1)[:, :asked].transpose(0, 1)
