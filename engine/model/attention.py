"""How a layer attends, and what an attention backend does: in plain torch here, by kernels in `cpu` and `cuda`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from engine.kv_cache import LayerPages
from engine.step_layout import StepLayout


class AttentionNotSupported(Exception):
    """A model asks for attention that no backend computes. It must be refused, never served wrongly."""


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How a layer attends. It is always causal.

    `window`: how many positions a query sees, its own included.
    `softcap`: scores are capped softly, by tanh, between `softcap` and its negative.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None


class Backend(Protocol):
    """Attention over pages on one kind of device. A step's layout says where its queries, keys and values are."""

    def store(self, layer: LayerPages, step: StepLayout, keys: Tensor, values: Tensor) -> None:
        """Write a step's keys and values, (rows, KV heads, size), to their pages. Idle rows are skipped."""
        ...

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: AttentionParams) -> Tensor:
        """Attend with a step's queries, (rows, heads, size), each to its own request. Returns (rows, heads, value size)."""
        ...


QUERY_BLOCK = 256
"""The most queries of a prompt that share one score matrix, which bounds its memory."""


class Reference:
    """A `Backend` in plain torch."""

    def store(self, layer: LayerPages, step: StepLayout, keys: Tensor, values: Tensor) -> None:
        """See `Backend`."""
        places = step.pages[: step.rows], step.offsets[: step.rows]
        for pages, rows in zip(layer, (keys, values), strict=True):
            pages.index_put_(places, rows[: step.rows])

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: AttentionParams) -> Tensor:
        """See `Backend`."""
        mixed = queries.new_zeros(*queries.shape[:2], layer.values.shape[3])
        if step.decode_rows:
            rows = slice(0, step.decode_rows)
            positions = step.position_ids[0, rows].unsqueeze(1)
            seen = _attend(queries[rows].unsqueeze(1), positions, layer, step.tables[rows], terms)
            mixed[rows] = seen[:, 0]
        row = step.decode_rows
        for number, (start, stop) in enumerate(step.spans[step.decode_rows :], start=step.decode_rows):
            table = step.tables[number : number + 1, : -(-stop // layer.keys.shape[1])]
            last = row + stop - start
            for first in range(row, last, QUERY_BLOCK):
                rows = slice(first, min(first + QUERY_BLOCK, last))
                positions = step.position_ids[:, rows]
                mixed[rows] = _attend(queries[rows].unsqueeze(0), positions, layer, table, terms)[0]
            row = last
        return mixed


def visible(positions: Tensor, keys: Tensor, terms: AttentionParams) -> Tensor:
    """Return whether queries may see keys, (…, queries, keys), by their positions, (…, queries) and (…, keys)."""
    queries, keys = positions.unsqueeze(-1), keys.unsqueeze(-2)
    seen = keys <= queries
    if terms.window is not None:
        seen = seen & (keys > queries - terms.window)
    return seen


def _attend(
    queries: Tensor, positions: Tensor, layer: LayerPages, tables: Tensor, terms: AttentionParams
) -> Tensor:
    """Attend with (requests, queries, heads, size) at positions, (requests, queries), to the pages of each request."""
    keys, values = (store[tables].flatten(1, 2).float() for store in layer)
    places = torch.arange(keys.shape[1], device=keys.device)
    seen = visible(positions, places.unsqueeze(0), terms)
    # A place that no query may see can hold anything, and 0 times NaN is NaN.
    values = values.masked_fill(~seen.any(dim=1)[:, :, None, None], 0.0)
    heads = keys.shape[2]
    shared = queries.float().reshape(*queries.shape[:2], heads, -1, queries.shape[3]) * terms.scale
    scores = torch.einsum("rqhgd,rkhd->rhgqk", shared, keys)
    if terms.softcap is not None:
        scores = torch.tanh(scores / terms.softcap) * terms.softcap
    weights = scores.masked_fill(~seen[:, None, None], -torch.inf).softmax(dim=-1)
    return torch.einsum("rhgqk,rkhd->rqhgd", weights, values).flatten(2, 3).to(queries.dtype)
