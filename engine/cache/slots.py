"""Keys and values of all running replies: for each layer one tensor with a slot for each reply.

Knows shapes and memory, not what attention does with them. Layers are made when the model first writes to
them, with the shapes that it writes, so that no table of model types is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from engine.cache.capacity import STEP, Ladder
from engine.cache.lazy_memory import LazyMemory, unwritten_is_free
from engine.cache.slot_batch import SlotBatch

FIRST_TOKENS = 512
"""Positions in a slot at first, on devices where memory is committed as soon as it is asked for."""

ROOMY_BYTES = 2**30
"""Address space, not memory, of the keys of a layer at first, where it does not matter how long slots are.

With 32 slots of 8 heads, 128 wide, in two bytes each: 16,384 positions before a slot is made longer.
"""

PROMPT_LAYERS = 4
"""Layers that change their length in one step while prompts are computed."""

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

    def __init__(self, keys: Tensor, values: Tensor, memories: tuple[LazyMemory, ...] = ()) -> None:
        self.keys = keys
        self.values = values
        self.memories = memories

    @classmethod
    def make(cls, like: tuple[Tensor, Tensor], slots: int, tokens: int, *, lazy: bool) -> KVLayer:
        """Make an empty layer for keys and values like these, each (…, heads, …, head size)."""
        shapes = [(slots, one.shape[1], tokens, one.shape[-1]) for one in like]
        if lazy:
            memories = tuple(LazyMemory(shape, like[0].dtype) for shape in shapes)
            return cls(memories[0].tensor, memories[1].tensor, memories)
        return cls(like[0].new_zeros(shapes[0]), like[1].new_zeros(shapes[1]))

    @property
    def tokens(self) -> int:
        """How many positions a slot has."""
        return self.keys.shape[2]

    @property
    def bytes_per_token(self) -> int:
        """Memory for one position of one slot."""
        return sum(t.element_size() * t.shape[1] * t.shape[3] for t in (self.keys, self.values))

    def resize(self, slots: int, tokens: int, held: Mapping[int, int]) -> None:
        """Change the number of slots and positions; what they hold, of each slot its first positions, stays."""
        made = KVLayer.make((self.keys, self.values), slots, tokens, lazy=bool(self.memories))
        for old, new in ((self.keys, made.keys), (self.values, made.values)):
            for slot, count in held.items():
                new[slot, :, :count] = old[slot, :, :count]
        self.keys, self.values, self.memories = made.keys, made.values, made.memories

    def empty(self, slot: int) -> None:
        """Zero a slot; its memory goes back to the system where that is possible."""
        for memory in self.memories:
            memory.release(slot)
        if not self.memories:
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

    Attention is expected to read only the slots that it needs (`engine.attention.attend`). Slots are little longer than the
    longest reply, so that a batch of replies is read in one piece. Where memory is committed when it is written, all
    slots are there from the start, and layers change their length one a step, ahead of the need, so that no
    step takes much longer than the others; with `roomy`, slots are long from the start, because attention reads no more
    of them than it needs. Elsewhere all is doubled when a step needs it. With `fixed`, layers have
    their final size from the start, and stay where they are, with a spare slot behind the last; `resizes` counts moves.
    """

    layers: list[KVLayer]  # type: ignore[assignment] # transformers' own layers know one length, not slots

    def __init__(
        self, *, slots: int, tokens: int, lazy: bool, fixed: bool = False, roomy: bool = False
    ) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.tokens = tokens
        self._lazy = lazy
        self._roomy = roomy and lazy and unwritten_is_free()
        self._ladder = Ladder(tokens)
        self._first = (slots, self._ladder.length_for(1)) if lazy else (1, min(FIRST_TOKENS, tokens))
        if fixed:
            self._first = slots + 1, tokens
        self.resizes = 0
        self._held: dict[int, int] = {}
        self._expected: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._batch: SlotBatch | None = None

    @property
    def bytes_per_token(self) -> int:
        """Memory for one position of one slot over all layers. Known once the model ran."""
        return sum(layer.bytes_per_token for layer in self.layers)

    def begin(self, batch: SlotBatch) -> None:
        """Make room for a step, and direct what the module writes to its slots."""
        self._batch = batch
        self._advance(batch.stops, batch.highest_slot + 1, batch.extent)

    def reach(self, stops: Sequence[tuple[int, int]]) -> None:
        """Make room for a step that writes to the slots by itself: (slot, positions held by then)."""
        self._advance(stops, max(slot for slot, _ in stops) + 1, max(stop for _, stop in stops))

    def _advance(self, stops: Iterable[tuple[int, int]], slots_needed: int, tokens_needed: int) -> None:
        self._make_room(slots_needed, tokens_needed)
        self.hold(stops)
        if self._lazy:
            self._work_ahead()

    def hold(self, stops: Iterable[tuple[int, int]]) -> None:
        """Note how many positions slots hold: (slot, positions). Resizing keeps these."""
        self._held.update(stops)
        if self._expected:
            self._expected = {slot: n for slot, n in self._expected.items() if self._held.get(slot, 0) < n}

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
        self._held[slot] = tokens
        for layer, (keys, values) in zip(self.layers, state.layers, strict=True):
            layer.keys[slot, :, :tokens] = keys[:, :tokens]
            layer.values[slot, :, :tokens] = values[:, :tokens]

    @torch.inference_mode()
    def leave(self, slot: int, tokens: int) -> None:
        """Note that a slot that held `tokens` is not used any more."""
        self._held.pop(slot, None)
        self._expected.pop(slot, None)
        most = max(self._written.get(slot, 0), tokens)
        self._written[slot] = most
        if self._lazy and most >= LONG_TOKENS:
            self.scrub(slot)

    def expect(self, slot: int, tokens: int) -> None:
        """Note how many positions a slot will hold before long: its prompt's."""
        self._expected[slot] = tokens

    @torch.inference_mode()
    def scrub(self, slot: int) -> None:
        """Zero a slot, after a reply that left something in it that is not a number."""
        self._written.pop(slot, None)
        for layer in self.layers:
            layer.empty(slot)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values, each of shape (1, heads, rows, head size); return the layer's."""
        keys, values = key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        layer = self.layer(layer_idx, keys, values)
        layer.write(self._step, keys, values)
        return layer.keys, layer.values

    @property
    def _step(self) -> SlotBatch:
        if self._batch is None:
            raise RuntimeError("the cache was written to outside a step")
        return self._batch

    def layer(self, number: int, keys: Tensor, values: Tensor) -> KVLayer:
        """Return a layer, made now where the model never wrote to it, for keys and values like these, (rows, heads, size)."""
        while len(self.layers) <= number:
            self.layers.append(self._new_layer(keys.unsqueeze(0), values.unsqueeze(0)))
        return self.layers[number]

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return 0: no single length fits all slots, and positions are always given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """Return (positions, offset) for masks, which `engine.attention.attend` makes by itself."""
        return self.tokens, 0

    def _new_layer(self, keys: Tensor, values: Tensor) -> KVLayer:
        """Make a layer for keys and values like these, (1, rows, heads, head size)."""
        if self.layers:
            slots, tokens = self.layers[0].keys.shape[0], self.layers[0].tokens
        else:
            slots, tokens = self._size_of_first(keys)
        like = keys.transpose(1, 2), values.transpose(1, 2)
        return KVLayer.make(like, slots, tokens, lazy=self._lazy)

    def _size_of_first(self, keys: Tensor) -> tuple[int, int]:
        """Return the slots and positions of the first layer, for keys like these, (1, rows, heads, head size)."""
        slots, tokens = self._first
        if self._roomy:
            position_bytes = slots * keys.shape[2] * keys.shape[3] * keys.element_size()
            self._ladder = Ladder(self.tokens, shortest=max(STEP, ROOMY_BYTES // position_bytes))
            tokens = self._ladder.length_for(1)
        return self._room(slots, tokens, self._step.highest_slot + 1, self._step.extent)

    def _make_room(self, slots_needed: int, tokens_needed: int) -> None:
        for layer in self.layers:
            slots, tokens = layer.keys.shape[0], layer.tokens
            room = self._room(slots, tokens, slots_needed, tokens_needed)
            if room != (slots, tokens):
                layer.resize(*room, self._held)
                self.resizes += 1

    def _room(self, slots: int, tokens: int, slots_needed: int, tokens_needed: int) -> tuple[int, int]:
        if self._lazy:
            soon = max(tokens_needed, *self._expected.values()) if self._expected else tokens_needed
            return slots, tokens if tokens >= tokens_needed else self._ladder.length_for(
                min(soon, self.tokens)
            )
        return _doubled(slots, slots_needed, self.slots), _doubled(tokens, tokens_needed, self.tokens)

    def _work_ahead(self) -> None:
        """Give some layers the length that all should have by the time that the last of them needs it."""
        soon = max(*self._held.values(), *self._expected.values(), 0) + len(self.layers)
        # A prompt comes in large chunks; replies grow by one.
        some = PROMPT_LAYERS if self._expected else 1
        for layer in self.layers:
            length = self._ladder.better(layer.tokens, soon)
            if length != layer.tokens and some:
                layer.resize(self.slots, length, self._held)
                some -= 1


def _doubled(now: int, needed: int, limit: int) -> int:
    if now >= needed:
        return now
    while now < needed:
        now *= 2
    return min(now, limit)
