"""Keys and values of all requests: two tensors of pages for each layer, which are made once and never move.

On a CPU the system provides their memory when a page is first written, and takes it back by `give_back`.

Knows shapes and memory, but not what attention does with them. A layer is made when the model first writes to it, with
the shapes that it writes, so no table of model types is needed.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from engine.cache.layout import StepLayout
from engine.cache.pages import PageCopy


class LayerPages(NamedTuple):
    """One layer's keys and values, (pages, page size, heads, head size). Places that were never written are undefined.

    In memory the tokens of a head are side by side within a page, so that a CPU reads them in one piece.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def make(cls, keys: Tensor, values: Tensor, pages: int, size: int) -> LayerPages:
        """Make `pages` pages of `size` tokens, for keys and values like these, (rows, heads, head size)."""
        made = [_reserved(one, pages, size) for one in (keys, values)]
        return cls(made[0].transpose(1, 2), made[1].transpose(1, 2))

    @property
    def bytes_per_token(self) -> int:
        """Memory for one token, in bytes."""
        return sum(one.element_size() * one.shape[2] * one.shape[3] for one in self)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages, one after the other."""
        for store in self:
            for source, target in copies:
                store[target].copy_(store[source])

    def give_back(self, pages: Sequence[int]) -> None:
        """Return the memory of pages, in ascending order, to the system: on a CPU, under Linux. Their content is lost."""
        for store in self:
            begin, size = store.data_ptr(), store.stride(0) * store.element_size()
            for first, stop in _runs(pages):
                _give_back(begin + first * size, begin + stop * size)


Store = Callable[[LayerPages, StepLayout, Tensor, Tensor], None]
"""Writes keys and values, (rows, heads, head size), to the pages of a layout. Each attention backend has its own."""


class PagedCache(Cache):
    """The cache for a transformers module. It stores a step's keys and values, and hands out whole layers.

    Attention reads from the layers what it needs (`engine.model.attention`). With `gathers` the cache hands out the contexts of
    a step's requests instead, (requests, heads, tokens, head size), for modules that make keys and values of them first.
    """

    layers: list[LayerPages]  # type: ignore[assignment] # transformers' own layers have one length, and no pages

    def __init__(self, *, pages: int, page_size: int, store: Store, gathers: bool = False) -> None:
        super().__init__(layers=[])
        self.gathers = gathers
        self.pages = pages
        self.page_size = page_size
        self._store = store
        self._step: StepLayout | None = None

    @property
    def tokens(self) -> int:
        """How many tokens all pages hold."""
        return self.pages * self.page_size

    @property
    def bytes_per_token(self) -> int:
        """Memory for one token in all layers, in bytes. It is known once the model has run."""
        return sum(layer.bytes_per_token for layer in self.layers)

    def begin(self, step: StepLayout) -> None:
        """Set the step whose pages the module writes to from now on."""
        self._step = step

    @torch.inference_mode()
    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Copy pages in all layers, in order."""
        for layer in self.layers:
            layer.copy(copies)

    def give_back(self, pages: Sequence[int]) -> None:
        """Return the memory of pages in all layers: see `LayerPages.give_back`."""
        for layer in self.layers:
            layer.give_back(pages)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store a step's keys and values, (1, heads, rows, head size); return the layer's pages, or gathered contexts."""
        if self._step is None:
            raise RuntimeError("the cache was written to outside a step")
        keys, values = key_states[0].transpose(0, 1), value_states[0].transpose(0, 1)
        layer = self.layer(layer_idx, keys, values)
        self._store(layer, self._step, keys, values)
        if not self.gathers:
            return layer
        contexts = [store[self._step.tables].flatten(1, 2).transpose(1, 2) for store in layer]
        return contexts[0], contexts[1]

    def layer(self, number: int, keys: Tensor, values: Tensor) -> LayerPages:
        """Return a layer, which is made now if it is new, for keys and values like these, (rows, heads, size)."""
        while len(self.layers) <= number:
            self.layers.append(LayerPages.make(keys, values, self.pages, self.page_size))
        return self.layers[number]

    def get_seq_length(self, layer_idx: int | None = None) -> int | Tensor:  # type: ignore[override] # per row
        """Return the positions of a step's rows minus their row numbers, (rows,), for a layer; 0 without one.

        Layers that scale queries by position, such as Llama 4's, add row numbers to this. Whole modules need no length,
        since they always receive position ids.
        """
        if layer_idx is None:
            return 0
        if self._step is None:
            raise RuntimeError("the cache was read outside a step")
        positions = self._step.position_ids[0]
        return positions - torch.arange(len(positions), device=positions.device)

    def get_query_offset(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Return the offset of masks, which are not used, since attention makes its own."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """Return (positions, offset) of masks, which are not used, since attention makes its own."""
        return self.tokens, 0


def _reserved(like: Tensor, pages: int, size: int) -> Tensor:
    """Return memory for pages, (pages, heads, page size, head size)."""
    shape = pages, like.shape[1], size, like.shape[2]
    if like.device.type != "cpu":
        return like.new_empty(shape)
    # It begins with a page of the system, so that pages can be given back without their neighbors.
    length = math.prod(shape) * like.element_size()
    memory = like.new_empty(length + mmap.PAGESIZE, dtype=torch.uint8)
    start = -memory.data_ptr() % mmap.PAGESIZE
    return memory[start : start + length].view(like.dtype).view(shape)


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first of neighboring pages, and the page after the last."""
    first = 0
    for place in range(1, len(pages) + 1):
        if place == len(pages) or pages[place] != pages[place - 1] + 1:
            yield pages[first], pages[place - 1] + 1
            first = place


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _give_back(start: int, stop: int) -> None:
    """Return the whole pages of the system between two addresses. Locked memory stays."""
    start, stop = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if start < stop:
        _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)
