"""How many pages of keys and values there is memory for, and how much context that gives each reply. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ModelNotUsable

KV_SHARE = 0.5
"""The share of a device's free memory that keys and values take after loading, by default."""

CPU_KV_SHARE = 0.25
"""The same on a CPU, whose memory is shared with everything else that runs."""

CUDA_KV_SHARE = 0.95
"""The same on CUDA, of the memory that the largest step leaves, which is measured. The rest is for recorded steps."""

CPU_PAGE = 64
CUDA_PAGE = 256
"""Tokens of a page. On a CPU this measured best; on CUDA FlashAttention requires it."""

SMALLEST_CONTEXT = 64
"""The fewest tokens of prompt and reply that make sense for a conversation."""


def page_size(device: str) -> int:
    """Return how many tokens a page has on a type of device, such as "cpu"."""
    return CUDA_PAGE if device == "cuda" else CPU_PAGE


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Memory for `pages` of `page_size` tokens, for requests and for the cache of prefixes.

    `context_tokens`: the most tokens of one prompt with its reply. `bytes_per_token`: keys and values of all layers.
    """

    pages: int
    page_size: int
    context_tokens: int
    bytes_per_token: int


def kv_budget(
    size: int | None, *, bytes_per_token: int, window: int | None, max_batch: int, page_size: int
) -> KVBudget:
    """Divide `size` bytes into pages. None: the free memory is unknown, so every reply gets its whole window.

    Raises ModelNotUsable if there is too little memory.
    """
    if size is None and window is None:
        raise ModelNotUsable(
            "Neither the model nor this machine has a known limit for the context: set MIDSTREAM_KV_BYTES."
        )
    total = max_batch * _rounded_up(window or 0, page_size) if size is None else size // bytes_per_token
    # With memory for less than one page, the page is smaller: a model with a short window may need no more.
    page = min(page_size, max(1, total))
    room = total // page * page
    context = room if window is None else min(window, room)
    if context < SMALLEST_CONTEXT:
        raise ModelNotUsable(
            f"Keys and values have room for {context} tokens, which is too little. Raise MIDSTREAM_KV_BYTES."
        )
    return KVBudget(total // page, page, context, bytes_per_token)


def _rounded_up(tokens: int, step: int) -> int:
    return -(-tokens // step) * step
