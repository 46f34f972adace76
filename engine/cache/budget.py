"""How many pages of keys and values there is memory for, and how much context that gives each reply. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ModelNotUsable

KV_SHARE = 0.5
"""The share of a device's free memory that keys and values may take after loading, unless told."""

CPU_KV_SHARE = 0.25
"""The same where memory is shared with all else that runs, as a CPU's is."""

CUDA_KV_SHARE = 0.95
"""The same on CUDA, of what the largest step leaves: that is measured there, and the rest is for recorded steps."""

CPU_PAGE = 64
CUDA_PAGE = 256
"""Tokens of a page. On a CPU what measured best; on CUDA what the kernels of others ask for."""

SMALLEST_CONTEXT = 64
"""Tokens of prompt and reply below which no conversation makes sense."""


def page_size(device: str) -> int:
    """Return how many tokens a page has on a device of a type, such as cpu."""
    return CUDA_PAGE if device == "cuda" else CPU_PAGE


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Memory for `pages` of `page_size` tokens, which requests and what is kept for later ones share.

    `context_tokens`: of one reply, its prompt included. `bytes_per_token`: keys and values of all layers.
    """

    pages: int
    page_size: int
    context_tokens: int
    bytes_per_token: int


def kv_budget(
    size: int | None, *, bytes_per_token: int, window: int | None, max_batch: int, page_size: int
) -> KVBudget:
    """Share `size` bytes out; None where nobody can tell how much there is: then every reply gets its whole window.

    Raises ModelNotUsable where there is too little.
    """
    if size is None and window is None:
        raise ModelNotUsable(
            "Neither the model nor this machine names a limit for the context: set MIDSTREAM_KV_BYTES."
        )
    total = max_batch * _rounded_up(window or 0, page_size) if size is None else size // bytes_per_token
    # Less than a page is a page of its own: a model with a short window may have little memory.
    page = min(page_size, max(1, total))
    room = total // page * page
    context = room if window is None else min(window, room)
    if context < SMALLEST_CONTEXT:
        raise ModelNotUsable(
            f"Keys and values have room for {context} tokens: too little. Raise MIDSTREAM_KV_BYTES."
        )
    return KVBudget(total // page, page, context, bytes_per_token)


def _rounded_up(tokens: int, step: int) -> int:
    return -(-tokens // step) * step
