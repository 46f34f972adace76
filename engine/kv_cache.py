"""Keys and values of all running replies: for each layer one tensor with a slot for each reply.

Knows shapes and memory, not what attention does with them. Layers are made when the model first writes to
them, with the shapes that it writes, so that no table of model types is needed.
"""

from __future__ import annotations

import mmap
import sys
from math import prod
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from engine.slot_batch import SlotBatch

FIRST_TOKENS = 512
"""Positions in a slot at first, on devices where memory is committed as soon as it is asked for."""


class KVLayer:
    """One layer's `keys` and `values`, each of shape (slots, heads, tokens, head size).

    Never written places are zero: whatever is masked out must be finite, for 0 times NaN is NaN.
    """

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values

    @property
    def bytes_per_token(self) -> int:
        """Memory for one position of one slot."""
        return sum(t.element_size() * t.shape[1] * t.shape[3] for t in (self.keys, self.values))

    def grow(self, slots: int, tokens: int) -> None:
        """Make room for at least this many slots and positions; what was written stays."""
        self.keys = _grown(self.keys, slots, tokens)
        self.values = _grown(self.values, slots, tokens)

    def write(self, batch: SlotBatch, keys: Tensor, values: Tensor) -> None:
        """Store a step's keys and values, each of shape (heads, rows, head size), where the batch says."""
        for store, new in ((self.keys, keys), (self.values, values)):
            if batch.decode_rows:
                store[batch.decode_slots, :, batch.decode_positions] = new[:, : batch.decode_rows].transpose(
                    0, 1
                )
            for chunk in batch.chunks:
                store[chunk.slot, :, chunk.start : chunk.stop] = new[:, chunk.rows]


class SlotCache(Cache):
    """The cache that a transformers module is given: it writes to the slots and hands out whole layers.

    Attention is expected to read only the slots that it needs (`engine.attention`). Memory grows with use, up
    to `slots` times `tokens` positions: on a CPU the system commits pages when they are first written,
    elsewhere the tensors are doubled when a step needs it.
    """

    layers: list[KVLayer]  # type: ignore[assignment] # transformers' own layers know one length, not slots

    def __init__(self, *, slots: int, tokens: int, commits_lazily: bool) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.tokens = tokens
        self._lazy = commits_lazily
        self._capacity = (slots, tokens) if commits_lazily else (1, min(FIRST_TOKENS, tokens))
        self._batch: SlotBatch | None = None

    @property
    def bytes_per_token(self) -> int:
        """Memory for one position of one slot over all layers. Known once the model ran."""
        return sum(layer.bytes_per_token for layer in self.layers)

    def begin(self, batch: SlotBatch) -> None:
        """Make room for a step, and direct what the module writes to its slots."""
        self._batch = batch
        slots, tokens = self._capacity
        needed = batch.highest_slot + 1, batch.extent
        if needed[0] > slots or needed[1] > tokens:
            self._capacity = _doubled(slots, needed[0], self.slots), _doubled(tokens, needed[1], self.tokens)
            for layer in self.layers:
                layer.grow(*self._capacity)

    @torch.inference_mode()
    def scrub(self, slot: int) -> None:
        """Zero a slot, after a reply that left something in it that is not a number."""
        for layer in self.layers:
            layer.keys[slot].zero_()
            layer.values[slot].zero_()

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values, each of shape (1, heads, rows, head size); return the layer's."""
        if self._batch is None:
            raise RuntimeError("the cache was written to outside a step")
        while len(self.layers) <= layer_idx:
            self.layers.append(KVLayer(self._allocate(key_states), self._allocate(value_states)))
        layer = self.layers[layer_idx]
        layer.write(self._batch, key_states[0], value_states[0])
        return layer.keys, layer.values

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return 0: no single length fits all slots, and positions are always given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """Return (positions, offset) for masks, which `engine.attention` makes by itself."""
        return self.tokens, 0

    def _allocate(self, like: Tensor) -> Tensor:
        slots, tokens = self._capacity
        shape = (slots, like.shape[1], tokens, like.shape[3])
        if self._lazy:
            return _untouched(shape, like.dtype)
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


def _untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in CPU memory that is committed page by page, when it is first written."""
    size = prod(shape) * dtype.itemsize
    if sys.platform == "win32":
        memory = mmap.mmap(-1, size)
    else:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # The mapping lives as long as the tensor, which keeps a reference to its buffer.
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _doubled(now: int, needed: int, limit: int) -> int:
    while now < needed:
        now *= 2
    return min(now, limit)


def _grown(old: Tensor, slots: int, tokens: int) -> Tensor:
    new = old.new_zeros((slots, old.shape[1], tokens, old.shape[3]))
    new[: old.shape[0], :, : old.shape[2]] = old
    return new
