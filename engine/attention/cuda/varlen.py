"""Attention over block tables by torch 2.12 or newer: FlashAttention 2, or a newer one that is activated.

Source: `torch.nn.attention.varlen`. FlashAttention 2 requires pages whose size is a multiple of 256.
"""

from __future__ import annotations

import torch

from engine.attention.cuda.operators import AttentionInputs

PAGE = 256
LARGEST_HEAD = 256
HALVES = (torch.bfloat16, torch.float16)

try:
    from torch.nn.attention import current_flash_attention_impl
    from torch.nn.attention.varlen import varlen_attn_out
except ImportError:  # an older torch: only the Triton kernels serve
    HAS_VARLEN = False
else:
    HAS_VARLEN = True


class Varlen:
    """Serves causal attention and sliding windows, with the same call for replies and prompts."""

    name = "varlen"

    def serves(self, inputs: AttentionInputs) -> bool:
        """Whether it can compute a layer's attention."""
        keys, values = inputs.layer
        page, _, size = keys.shape[1:]
        plain = inputs.terms.softcap is None and inputs.terms.chunk is None and inputs.sinks is None
        fits = keys.shape == values.shape and page % PAGE == 0
        return HAS_VARLEN and plain and fits and _is_served(size, keys.dtype)

    def decode(self, inputs: AttentionInputs) -> None:
        """Attend with the step's first rows, one a request."""
        _attend(inputs, slice(inputs.step.decode_rows), slice(inputs.step.decode_rows + 1), most=1)

    def prompts(self, inputs: AttentionInputs) -> None:
        """Attend with the queries behind them. `query_starts` counts from the step's first row."""
        behind = slice(inputs.step.decode_rows, None)
        _attend(inputs, behind, behind, most=inputs.step.longest_prompt)


def _is_served(size: int, dtype: torch.dtype) -> bool:
    return dtype in HALVES and size <= LARGEST_HEAD and size % 8 == 0


def _attend(inputs: AttentionInputs, requests: slice, borders: slice, *, most: int) -> None:
    step, (keys, values) = inputs.step, inputs.layer
    newer = current_flash_attention_impl() is not None
    rows = slice(step.decode_rows) if most == 1 else slice(None)
    window = inputs.terms.window
    varlen_attn_out(
        inputs.out[rows],
        inputs.queries[rows],
        keys,
        values,
        step.query_starts[borders],
        None if newer else step.key_starts[borders],
        most,
        step.tables.shape[1] * keys.shape[1],
        scale=inputs.terms.scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
        seqused_k=step.lengths[requests],
        block_table=step.tables[requests],
        # FlashAttention 2 was seen to give NaN when it splits contexts in pages.
        num_splits=None if newer else 1,
    )
