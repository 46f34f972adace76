"""How many tokens of keys and values there is memory for, and how much context that gives each reply. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import ModelNotUsable

KV_SHARE = 0.5
"""The share of a device's free memory that keys and values may take after loading, unless told."""

LAZY_KV_SHARE = 0.25
"""The same where memory is shared with all else that runs, as a CPU's is."""

SMALLEST_CONTEXT = 64
"""Tokens of prompt and reply below which no conversation makes sense."""

_PARKED_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class KVBudget:
    """Memory in tokens: `tokens` of running replies and kept states together, `parked_tokens` of these states at most.

    `context_tokens`: of one reply, its prompt included. `bytes_per_token`: keys and values of all layers.
    """

    tokens: int
    parked_tokens: int
    context_tokens: int
    bytes_per_token: int


def kv_budget(
    size: int | None, *, bytes_per_token: int, window: int | None, max_batch: int, lazy: bool
) -> KVBudget:
    """Share `size` bytes out; None where nobody can tell how much there is: then every reply gets its whole window.

    `lazy`: memory is committed with use, so that one reply may have what others leave. Where it is not, the slots
    are as long as each other, and what is kept has a part of its own. Raises ModelNotUsable where there is too little.
    """
    if size is None and window is None:
        raise ModelNotUsable(
            "Neither the model nor this machine names a limit for the context: set MIDSTREAM_KV_BYTES."
        )
    total = max_batch * (window or 0) if size is None else size // bytes_per_token
    # Not lazily, one more slot is made than replies run: rows of nobody write there (`engine.execution.padded_decode`).
    slots = max_batch + 1
    room = total if lazy else int(total * (1 - _PARKED_SHARE)) // slots
    context = room if window is None else min(window, room)
    if context < SMALLEST_CONTEXT:
        raise ModelNotUsable(
            f"Keys and values have room for {context} tokens a reply: too little. Lower MIDSTREAM_MAX_BATCH "
            "or raise MIDSTREAM_KV_BYTES."
        )
    parked = total if lazy else total - slots * context
    return KVBudget(total, parked, context, bytes_per_token)
