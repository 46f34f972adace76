"""How a layer attends, and what a backend of attention has to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.cache.layout import StepLayout
from engine.cache.paged_cache import LayerPages


class AttentionNotSupported(Exception):
    """A model asks its attention for something that is not built: it must be refused, never served wrongly."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a layer attends; causal always.

    `window`: a query sees so many positions, its own included. `chunk`: it sees none before the last multiple of it.
    `softcap`: scores are kept between it and its negative.
    """

    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None


class Backend(Protocol):
    """Attention over the pages of one kind of device. A step's layout says where everything lies."""

    def store(self, layer: LayerPages, step: StepLayout, keys: Tensor, values: Tensor) -> None:
        """Write a step's keys and values, (rows, KV heads, size), to their pages; rows of nobody are left out."""
        ...

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: Terms) -> Tensor:
        """Attend with a step's queries, (rows, heads, size), each to its own request. Returns (rows, heads, value size)."""
        ...
