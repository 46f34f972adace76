"""Attention over the pages of the KV cache on a CUDA device: one function, and behind it the faster of two ways.

Which way is faster is measured once, at the start, for each kind of layer and each number of rows that decode steps
are recorded for. A way that the device refuses, or that disagrees with ours, is not taken, and the log says so.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.attention.cuda import operators
from engine.attention.cuda.operators import Asked
from engine.attention.cuda.varlen import Varlen
from engine.attention.terms import Terms
from engine.cache.layout import StepLayout
from engine.cache.paged_cache import LayerPages

DISAGREEMENT = 0.02
"""How far two ways may be apart, in parts of the largest number that ours gives: bfloat16 keeps 8 bits."""

PROMPTS = 0
"""Stands where else the number of decoding rows does."""

FEW_ROWS = (PROMPTS, 1, 2, 4, 8)
ROWS_APART = 16

Measure = Callable[[Callable[[], None]], float]
"""Returns for how many seconds a call keeps the device busy."""

log = logging.getLogger(__name__)


class Way(Protocol):
    """One implementation of attention over pages."""

    @property
    def name(self) -> str:
        """What the log calls it."""

    def serves(self, asked: Asked) -> bool:
        """Whether it computes what a layer asks for."""

    def decode(self, asked: Asked) -> None:
        """Attend with the step's first rows, one a request."""

    def prompts(self, asked: Asked) -> None:
        """Attend with all queries behind."""


@dataclass(frozen=True, slots=True)
class Triton:
    """The kernels of our own: they serve all terms. `processors`: how many the device has."""

    processors: int
    name: str = "triton"

    def serves(self, asked: Asked) -> bool:  # noqa: ARG002 - whatever it is
        """Return True."""
        return True

    def decode(self, asked: Asked) -> None:
        """Attend with the step's first rows, one a request."""
        operators.attend_decode(asked, processors=self.processors)

    def prompts(self, asked: Asked) -> None:
        """Attend with the queries behind them."""
        operators.attend_prompts(asked)


class Cuda:
    """See `engine.attention.terms.Backend`: attention by the way that was found for a layer's terms and a step's size."""

    def __init__(self, *, processors: int, others: Sequence[Way] = (Varlen(),)) -> None:
        """Take the number of the device's processors, and what else may serve beside the kernels of our own."""
        self._own: Way = Triton(processors)
        self._others = others
        self._chosen: dict[tuple[Terms, int], Way] = {}
        self.measure: Measure | None = None
        """While it is set, the first step of a kind finds the faster way, and waits for the device."""

    def store(self, layer: LayerPages, step: StepLayout, keys: Tensor, values: Tensor) -> None:
        """See `Backend`."""
        operators.store(layer, step, keys, values)

    def attend(
        self,
        queries: Tensor,
        layer: LayerPages,
        step: StepLayout,
        terms: Terms,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Backend`. At most three launches, whatever the lengths are, and nobody waits for the device.

        What it returns for a row of nobody behind prompts is any bits.
        """
        asked = Asked(queries, layer, step, terms, _room(queries, layer), sinks)
        if step.decode_rows:
            self._way(asked, step.decode_rows).decode(asked)
        if step.longest_prompt:
            self._way(asked, PROMPTS).prompts(asked)
        return asked.out

    def _way(self, asked: Asked, rows: int) -> Way:
        kind = asked.terms, padded_rows(rows)
        if self.measure is not None and kind not in self._chosen:
            self._chosen[kind] = self._faster(asked, rows, self.measure)
        return self._chosen.get(kind, self._own)

    def _faster(self, asked: Asked, rows: int, measure: Measure) -> Way:
        """Return the faster way for steps like this one. Compiles kernels, and waits for the device."""
        tried = replace(asked, out=torch.zeros_like(asked.out))
        calls = {
            way: partial(way.decode if rows else way.prompts, tried) for way in (self._own, *self._others)
        }
        calls[self._own]()
        expected = tried.out.clone()
        times = {self._own: measure(calls[self._own])}
        for way in self._others:
            if way.serves(tried) and _is_right(way, calls[way], tried.out, expected):
                times[way] = measure(calls[way])
        told = ", ".join(f"{way.name} {seconds * 1e6:.0f} us" for way, seconds in times.items())
        log.info("attention of %s: %s", f"{rows} replies" if rows else "prompts", told)
        return min(times, key=times.__getitem__)


def padded_rows(rows: int) -> int:
    """Return how many rows a decode step of so many replies is recorded, and measured, for."""
    if rows <= FEW_ROWS[-1]:
        return FEW_ROWS[bisect_left(FEW_ROWS, rows)]
    return -(-rows // ROWS_APART) * ROWS_APART


def _room(queries: Tensor, layer: LayerPages) -> Tensor:
    return queries.new_empty(*queries.shape[:2], layer.values.shape[3])


def _is_right(way: Way, call: Callable[[], None], out: Tensor, expected: Tensor) -> bool:
    """Whether another way gives what ours does. Where it doesn't, the log says why it is not taken."""
    try:
        call()
        found = float((out - expected).abs().max() / expected.abs().max())
    except RuntimeError as error:  # all that CUDA and its libraries say is of this class
        log.warning("attention by %s is not used, the device refuses it: %s", way.name, error)
        return False
    if not found <= DISAGREEMENT:  # NaN is none
        log.warning("attention by %s is not used: it is %.2g apart from our own", way.name, found)
        return False
    return True
