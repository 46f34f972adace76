"""Attention over block tables as torch has it, from 2.12 on: FlashAttention 2, or a newer one that is activated.

Source: `torch.nn.attention.varlen`. Pages of 256 are what FlashAttention 2 asks for.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from engine.attention.cuda.terms import PagedLayer, PagedStep

PAGE = 256
LARGEST_HEAD = 256
HALVES = (torch.bfloat16, torch.float16)

try:
    from torch.nn.attention import current_flash_attention_impl
    from torch.nn.attention.varlen import varlen_attn_out
except ImportError:  # an older torch: Triton's kernels serve alone
    HAS_VARLEN = False
else:
    HAS_VARLEN = True


class Varlen:
    """One call for replies and prompts alike; plain causal attention and sliding windows."""

    name = "varlen"

    def serves(self, layer: PagedLayer) -> bool:
        """Whether it computes what a layer asks for."""
        page, _, size = layer.keys.shape[1:]
        plain = layer.terms.softcap is None and layer.terms.chunk is None and layer.sinks is None
        fits = layer.keys.shape == layer.values.shape and page % PAGE == 0
        return HAS_VARLEN and plain and fits and _is_served(size, layer.keys.dtype)

    def decode(self, queries: Tensor, layer: PagedLayer, step: PagedStep, out: Tensor) -> None:
        """Attend with the step's first rows, one a request."""
        rows = step.decode_rows
        part = _Part(
            step.query_starts[: rows + 1],
            step.key_starts[: rows + 1],
            step.lengths[:rows],
            step.tables[:rows],
        )
        _attend(queries[:rows], layer, part, out[:rows], most=1)

    def prompts(self, queries: Tensor, layer: PagedLayer, step: PagedStep, out: Tensor) -> None:
        """Attend with the queries behind them; where these begin is counted from the step's first row on."""
        rows = step.decode_rows
        part = _Part(
            step.query_starts[rows:], step.key_starts[rows:], step.lengths[rows:], step.tables[rows:]
        )
        _attend(queries, layer, part, out, most=step.longest_prompt)


class _Part(NamedTuple):
    """Some requests of a step."""

    query_starts: Tensor
    key_starts: Tensor
    lengths: Tensor
    tables: Tensor


def _is_served(size: int, dtype: torch.dtype) -> bool:
    return dtype in HALVES and size <= LARGEST_HEAD and size % 8 == 0


def _attend(queries: Tensor, layer: PagedLayer, part: _Part, out: Tensor, *, most: int) -> None:
    newer = current_flash_attention_impl() is not None
    window = layer.terms.window
    varlen_attn_out(
        out,
        queries,
        layer.keys,
        layer.values,
        part.query_starts,
        None if newer else part.key_starts,
        most,
        part.tables.shape[1] * layer.keys.shape[1],
        scale=layer.terms.scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
        seqused_k=part.lengths,
        block_table=part.tables,
        # FlashAttention 2 was seen to give NaN where it splits contexts in pages.
        num_splits=None if newer else 1,
    )
