"""Attention over the slots of the KV cache, registered with transformers under the name `midstream`.

Knows how queries find their slot; knows nothing of requests. The models themselves say what a query may see
(causal, sliding window, chunks): their own mask rule is evaluated at the step's positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from engine.attention import cpu_kernels
from engine.cache.slot_batch import EXTENT_STEP, ROWS_STEP, DecodeGroup, PrefillChunk, SlotBatch

NAME = "midstream"

QUERY_BLOCK = 256
"""Queries of a prompt that share one score matrix, where scores have to be made by hand: it bounds memory."""

COPYING_COST = 3
"""How often memory is passed over where a part of the slots is copied before it is read."""

MaskFunction = Callable[[Tensor, int, Tensor, Tensor], Tensor]


CAUSAL: MaskFunction = cast("MaskFunction", causal_mask_function)
"""transformers' own rule that a query sees what is not behind it; its types say integers."""


class AttentionNotSupported(Exception):
    """A model asks its attention for something that is not built: it must be refused, never served wrongly."""


class MaskRule:
    """What a query may see, as the model states it. Made once for each kind of layer in a forward pass."""

    def __init__(self, mask_function: MaskFunction) -> None:
        self._visible = mask_function
        self.is_causal = mask_function is CAUSAL

    def bias(self, positions: Tensor, extent: int, dtype: torch.dtype) -> Tensor:
        """Return what is added to the scores: 0 where visible, else -inf; shape (queries, extent)."""
        queries = positions.view(1, 1, -1, 1)
        keys = torch.arange(extent, device=positions.device).view(1, 1, 1, -1)
        visible = self._visible(torch.zeros_like(queries[:, :, :1]), 0, queries, keys)
        bias = torch.zeros((), dtype=dtype, device=positions.device).expand(len(positions), extent)
        return bias.masked_fill(~visible[0, 0], -torch.inf)


def register() -> None:
    """Make the name known to transformers. Repeating it does no harm."""
    AttentionInterface.register(NAME, slot_attention)
    AttentionMaskInterface.register(NAME, mask_rule)


def mask_rule(*, mask_function: MaskFunction, use_vmap: bool = False, **_sizes: Any) -> MaskRule:
    """Answer a model's wish for a mask. Raises AttentionNotSupported where its rule is not a plain one."""
    if use_vmap:
        raise AttentionNotSupported("it masks attention with rules of its own")
    return MaskRule(mask_function)


def slot_attention(  # noqa: PLR0917 - transformers calls it with these, in this order
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: MaskRule,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend with a step's queries, (1, heads, rows, size), to a layer's slots, (slots, KV heads, tokens, size).

    Takes the step's `SlotBatch` as the keyword `slots`, which was given to the model's forward. Returns
    (1, rows, heads, value size). Raises AttentionNotSupported for what some models do to scores.
    """
    slots = _checked(module, attention_mask, kwargs)
    rows = query[0].transpose(0, 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mixed = attend(rows, key, value, attention_mask, slots, scale, softcap=kwargs.get("softcap"))
    return mixed.unsqueeze(0), None


def attend(  # noqa: PLR0917 - the terms of attention
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rule: MaskRule,
    batch: SlotBatch,
    scaling: float,
    *,
    softcap: float | None = None,
) -> Tensor:
    """Attend with a step's queries, (rows, heads, size), to a layer's slots, (slots, KV heads, tokens, size).

    Returns (rows, heads, value size).
    """
    layer = _Attend(keys, values, rule, batch, scaling)
    layer.softcap = softcap
    plain = rule.is_causal and softcap is None and values.shape == keys.shape
    if batch.decode_rows and plain and cpu_kernels.serve(query, keys, values):
        places = batch.decode_slots, batch.decode_positions
        parts = [cpu_kernels.attend(query[: batch.decode_rows], keys, values, places, scaling)]
    else:
        parts = [layer.decode(query[group.rows], group) for group in batch.groups]
    parts += [layer.prefill(query[chunk.rows].transpose(0, 1), chunk) for chunk in batch.chunks]
    if batch.idle_rows:
        parts.append(query.new_zeros(batch.idle_rows, *parts[0].shape[1:]))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _checked(module: nn.Module, rule: object, kwargs: dict[str, Any]) -> SlotBatch:
    slots = kwargs.get("slots")
    if not isinstance(slots, SlotBatch) or not isinstance(rule, MaskRule):
        raise AttentionNotSupported(f"{type(module).__name__} does not pass on what attention needs")
    for feature in ("s_aux", "position_bias"):
        if kwargs.get(feature) is not None:
            raise AttentionNotSupported(f"{type(module).__name__} uses {feature}")
    return slots


class _Attend:
    """One layer's attention in one step. KV heads are never repeated: the queries that share one are stacked."""

    def __init__(
        self, keys: Tensor, values: Tensor, rule: MaskRule, slots: SlotBatch, scaling: float
    ) -> None:
        self.keys = keys
        self.values = values
        self.rule = rule
        self.batch = slots
        self.scaling = scaling
        self.softcap: float | None = None

    def decode(self, query: Tensor, group: DecodeGroup) -> Tensor:
        """Attend with one query for each row, (rows, heads, size), to that row's slot."""
        extent = self._extent(group)
        keys = self.keys[group.slots, :, :extent]
        values = self.values[group.slots, :, :extent]
        if group.members is not None:
            query = query.new_zeros(len(keys), *query.shape[1:]).index_copy_(0, group.members, query)
        heads = len(keys) * keys.shape[1]
        bias = self._bias(group, group.query_positions, extent, query.dtype, times=keys.shape[1])
        mixed = self._by_hand(
            query.reshape(heads, -1, query.shape[-1]),
            _readable(keys).reshape(heads, extent, -1),
            values.reshape(heads, extent, -1),
            bias.unsqueeze(1),
        )
        mixed = mixed.reshape(len(keys), -1, values.shape[-1])
        return mixed if group.members is None else mixed.index_select(0, group.members)

    def _extent(self, group: DecodeGroup) -> int:
        """Return how many positions to read: on a CPU whole slots, in one piece, unless a copy is cheaper."""
        length = self.keys.shape[2]
        whole = self.keys.device.type == "cpu" and length <= COPYING_COST * group.extent
        return length if whole else group.extent

    def prefill(self, query: Tensor, chunk: PrefillChunk) -> Tensor:
        """Attend with a chunk of a prompt, (heads, rows, size), to all of its slot so far."""
        # Rounded up, so that kernels, which are kept for each shape, repeat; what lies beyond is masked.
        extent = min(-(-chunk.stop // EXTENT_STEP) * EXTENT_STEP, self.keys.shape[2])
        keys = self.keys[chunk.slot, :, :extent]
        values = self.values[chunk.slot, :, :extent]
        bias = self._bias(chunk, chunk.query_positions, extent, query.dtype)
        blocks = [slice(row, row + QUERY_BLOCK) for row in range(0, query.shape[1], QUERY_BLOCK)]
        mixed = [self._prefill_block(query[:, rows], keys, values, bias[rows]) for rows in blocks]
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def _prefill_block(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        asked = query.shape[1]
        if asked % ROWS_STEP and self.softcap is None:
            idle = -asked % ROWS_STEP
            query, bias = functional.pad(query, (0, 0, 0, idle)), functional.pad(bias, (0, 0, 0, idle))
        heads, rows, size = query.shape
        sharing = heads // len(keys)
        stacked = query.reshape(len(keys), sharing * rows, size)
        wide = bias.repeat(sharing, 1)
        if self.softcap is None:
            mixed = functional.scaled_dot_product_attention(
                stacked[None], keys[None], values[None], attn_mask=wide[None, None], scale=self.scaling
            )
        else:
            mixed = self._by_hand(stacked, _readable(keys), values, wide)
        return mixed.reshape(heads, rows, -1)[:, :asked].transpose(0, 1)

    def _by_hand(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Attend with (heads, queries, size) to (heads, extent, size). The bias is broadcast to (heads, queries, extent)."""
        # For a single query, two matrix products beat the fused kernel on CPUs, in bf16 by a factor of three.
        turned = keys.transpose(1, 2)
        if self.softcap is None:
            scores = torch.baddbmm(bias, query, turned, alpha=self.scaling)
        else:
            capped = torch.tanh(torch.bmm(query * (self.scaling / self.softcap), turned))
            scores = capped * self.softcap + bias
        # The sums inside are of float32, whatever the dtype.
        return torch.bmm(torch.softmax(scores, dim=-1), values)

    def _bias(
        self,
        part: DecodeGroup | PrefillChunk,
        positions: Tensor,
        extent: int,
        dtype: torch.dtype,
        *,
        times: int = 1,
    ) -> Tensor:
        """Return the bias of each position: (positions * times, extent), each row so many times before the next one."""
        key = (id(part), self.rule, extent, times)
        if key not in self.batch.masks:
            bias = self.rule.bias(positions, extent, dtype)
            self.batch.masks[key] = bias if times == 1 else bias.repeat_interleave(times, dim=0)
        return self.batch.masks[key]


def _readable(keys: Tensor) -> Tensor:
    """Return keys as the matrix product reads them fast: oneDNN would copy a transposed view of slots element by element.

    Measured on two cores, 32 slots of 12 heads, 192 positions, 64 wide, bf16: 0.9 ms with this copy, 4 ms without.
    """
    return keys.contiguous() if keys.dtype is torch.bfloat16 and keys.device.type == "cpu" else keys
