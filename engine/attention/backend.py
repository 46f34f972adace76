"""How a layer attends, and what an attention backend has to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.cache.layout import StepLayout
from engine.cache.paged_cache import LayerPages


class AttentionNotSupported(Exception):
    """A model asks for attention that no backend computes. It must be refused, never served wrongly."""


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How a layer attends. It is always causal.

    `window`: how many positions a query sees, its own included. `chunk`: it sees none before the last multiple of it.
    `softcap`: scores are capped softly, by tanh, between it and its negative.
    """

    scale: float
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None


class Backend(Protocol):
    """Attention over pages on one kind of device. A step's layout says where its queries, keys and values are."""

    def store(self, layer: LayerPages, step: StepLayout, keys: Tensor, values: Tensor) -> None:
        """Write a step's keys and values, (rows, KV heads, size), to their pages. Idle rows are skipped."""
        ...

    def attend(self, queries: Tensor, layer: LayerPages, step: StepLayout, terms: AttentionParams) -> Tensor:
        """Attend with a step's queries, (rows, heads, size), each to its own request. Returns (rows, heads, value size)."""
        ...
