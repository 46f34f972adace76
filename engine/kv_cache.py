"""Keys and values of all running replies: for each layer one tensor with a slot for each reply.

Knows shapes and memory, not what attention does with them. Layers are made when the model first writes to
them, with the shapes that it writes, so that no table of model types is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from engine.lazy_memory import LazyMemory
from engine.slot_batch import SlotBatch

FIRST_TOKENS = 512
"""Positions in a slot at first, on devices where memory is committed as soon as it is asked for."""

LONG_TOKENS = 512
"""Slots that held at least as many tokens hand their memory back when they are left."""


def commits_lazily(device: torch.device) -> bool:
    """Whether memory is taken when it is first written, not when it is asked for."""
    return device.type == "cpu"


@dataclass(frozen=True, slots=True)
class KVState:
    """A copy of the first `tokens` positions of a slot: for each layer keys and values, (heads, tokens, head size)."""

    tokens: int
    layers: tuple[tuple[Tensor, Tensor], ...]


class KVLayer:
    """One layer's `keys` and `values`, each of shape (slots, heads, tokens, head size).

    Never written places are zero: whatever is masked out must be finite, for 0 times NaN is NaN.
    """

    def __init__(self, keys: Tensor, values: Tensor, lazy: tuple[LazyMemory, ...] = ()) -> None:
        self.keys = keys
        self.values = values
        self._lazy = lazy

    @property
    def bytes_per_token(self) -> int:
        """Memory for one position of one slot."""
        return sum(t.element_size() * t.shape[1] * t.shape[3] for t in (self.keys, self.values))

    def grow(self, slots: int, tokens: int) -> None:
        """Make room for at least this many slots and positions; what was written stays."""
        self.keys = _grown(self.keys, slots, tokens)
        self.values = _grown(self.values, slots, tokens)

    def empty(self, slot: int) -> None:
        """Zero a slot; its memory goes back to the system where that is possible."""
        for memory in self._lazy:
            memory.release(slot)
        if not self._lazy:
            self.keys[slot].zero_()
            self.values[slot].zero_()

    def write(self, batch: SlotBatch, keys: Tensor, values: Tensor) -> None:
        """Store a step's keys and values, each of shape (rows, heads, head size), where the batch says."""
        for store, new in ((self.keys, keys), (self.values, values)):
            if batch.decode_rows:
                places = batch.decode_places(store.shape[1], store.shape[2])
                flat = store.view(-1, store.shape[3])
                flat.index_copy_(0, places, new[: batch.decode_rows].reshape(-1, store.shape[3]))
            for chunk in batch.chunks:
                store[chunk.slot, :, chunk.start : chunk.stop] = new[chunk.rows].transpose(0, 1)


class SlotCache(Cache):
    """The cache that a transformers module is given: it writes to the slots and hands out whole layers.

    Attention is expected to read only the slots that it needs (`engine.attention`). Memory grows with use, up
    to `slots` times `tokens` positions: on a CPU the system commits pages when they are first written,
    elsewhere the tensors are doubled when a step needs it.
    """

    layers: list[KVLayer]  # type: ignore[assignment] # transformers' own layers know one length, not slots

    def __init__(self, *, slots: int, tokens: int, lazy: bool) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.tokens = tokens
        self._lazy = lazy
        self._capacity = (slots, tokens) if lazy else (1, min(FIRST_TOKENS, tokens))
        self._batch: SlotBatch | None = None

    @property
    def bytes_per_token(self) -> int:
        """Memory for one position of one slot over all layers. Known once the model ran."""
        return sum(layer.bytes_per_token for layer in self.layers)

    def begin(self, batch: SlotBatch) -> None:
        """Make room for a step, and direct what the module writes to its slots."""
        self._batch = batch
        self._make_room(batch.highest_slot + 1, batch.extent)

    @torch.inference_mode()
    def copy_out(self, slot: int, tokens: int) -> KVState:
        """Copy the first positions of a slot."""
        sources = [store[slot, :, :tokens] for layer in self.layers for store in (layer.keys, layer.values)]
        size = sum(source.numel() for source in sources)
        # One mapping, which goes back to the system whole: a heap would keep holes between states of many sizes.
        flat = LazyMemory((size,), sources[0].dtype).tensor if self._lazy else sources[0].new_empty(size)
        parts = torch.split(flat, [source.numel() for source in sources])
        copies = [part.view(source.shape).copy_(source) for part, source in zip(parts, sources, strict=True)]
        return KVState(tokens, tuple(zip(copies[::2], copies[1::2], strict=True)))

    @torch.inference_mode()
    def copy_in(self, state: KVState, slot: int, tokens: int) -> None:
        """Make the first positions of a slot those of a state."""
        self._make_room(slot + 1, tokens)
        for layer, (keys, values) in zip(self.layers, state.layers, strict=True):
            layer.keys[slot, :, :tokens] = keys[:, :tokens]
            layer.values[slot, :, :tokens] = values[:, :tokens]

    @torch.inference_mode()
    def leave(self, slot: int, tokens: int) -> None:
        """Note that a slot that held `tokens` is not used any more."""
        if self._lazy and tokens >= LONG_TOKENS:
            self.scrub(slot)

    @torch.inference_mode()
    def scrub(self, slot: int) -> None:
        """Zero a slot, after a reply that left something in it that is not a number."""
        for layer in self.layers:
            layer.empty(slot)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values, each of shape (1, heads, rows, head size); return the layer's."""
        return self.store(layer_idx, key_states[0].transpose(0, 1), value_states[0].transpose(0, 1))

    def store(self, number: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values, each of shape (rows, heads, head size); return the layer's."""
        if self._batch is None:
            raise RuntimeError("the cache was written to outside a step")
        while len(self.layers) <= number:
            self.layers.append(self._new_layer(keys, values))
        layer = self.layers[number]
        layer.write(self._batch, keys, values)
        return layer.keys, layer.values

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return 0: no single length fits all slots, and positions are always given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """Return (positions, offset) for masks, which `engine.attention` makes by itself."""
        return self.tokens, 0

    def _new_layer(self, keys: Tensor, values: Tensor) -> KVLayer:
        slots, tokens = self._capacity
        shapes = [(slots, like.shape[1], tokens, like.shape[2]) for like in (keys, values)]
        if self._lazy:
            lazy = tuple(LazyMemory(shape, keys.dtype) for shape in shapes)
            return KVLayer(lazy[0].tensor, lazy[1].tensor, lazy)
        return KVLayer(keys.new_zeros(shapes[0]), values.new_zeros(shapes[1]))

    def _make_room(self, slots_needed: int, tokens_needed: int) -> None:
        slots, tokens = self._capacity
        if slots_needed > slots or tokens_needed > tokens:
            self._capacity = (
                _doubled(slots, slots_needed, self.slots),
                _doubled(tokens, tokens_needed, self.tokens),
            )
            for layer in self.layers:
                layer.grow(*self._capacity)


def _doubled(now: int, needed: int, limit: int) -> int:
    while now < needed:
        now *= 2
    return min(now, limit)


def _grown(old: Tensor, slots: int, tokens: int) -> Tensor:
    new = old.new_zeros((slots, old.shape[1], tokens, old.shape[3]))
    new[: old.shape[0], :, : old.shape[2]] = old
    return new
