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

KEPT_SHARE = 0.25
"""Memory for prompts that are kept for later turns, relative to that of all replies at once. They also use what replies leave."""

WORKING_BYTES = 64 << 20
"""Memory for requests, formats and what libraries allocate when they are first used."""

STATES, INNER_STATES, LOGITS = 8, 4, 4
"""How many float32 copies of its states, of those of its feed-forward part and of its logits a step has at once, at most."""

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

    @property
    def total_bytes(self) -> int:
        """Memory for all pages."""
        return self.pages * self.page_size * self.bytes_per_token


def kv_budget(
    size: int | None,
    *,
    bytes_per_token: int,
    window: int | None,
    max_batch: int,
    page_size: int,
    is_limit: bool = False,
) -> KVBudget:
    """Divide `size` bytes into pages. None: the free memory is unknown, so every reply gets its whole window.

    `is_limit`: no more is taken than the windows of `max_batch` replies and `KEPT_SHARE` of that: more is of little use.
    Raises ModelNotUsable if there is too little memory.
    """
    if size is None and window is None:
        raise ModelNotUsable(
            "Neither the model nor this machine has a known limit for the context: set MIDSTREAM_KV_BYTES."
        )
    whole = max_batch * _rounded_up(window or 0, page_size)
    total = whole if size is None else size // bytes_per_token
    if is_limit and window is not None:
        total = min(total, int((1 + KEPT_SHARE) * whole))
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


def working_bytes(*, hidden: int, inner: int, vocabulary: int, tokens: int, max_batch: int) -> int:
    """Return about how much memory an engine takes at most beside weights, keys and values.

    `hidden`, `inner`: the widths of a layer and of its feed-forward part; `tokens`: of the largest step.
    """
    states = tokens * (STATES * hidden + INNER_STATES * inner)
    return WORKING_BYTES + 4 * (states + LOGITS * max_batch * vocabulary)
