"""Attention over the pages of the KV cache on a CUDA device: one function, and behind it the faster of two ways.

Which way is faster is measured once, at the start, for each kind of layer and each number of rows that decode steps
are recorded for. A way that the device refuses, or that disagrees with ours, is not taken, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor

from engine.attention.cuda import operators
from engine.attention.cuda.terms import PagedLayer, PagedStep, Terms
from engine.attention.cuda.varlen import Varlen

DISAGREEMENT = 0.02
"""How far two ways may be apart, in parts of the largest number that ours gives: bfloat16 keeps 8 bits."""

PROMPTS = 0
"""Stands where else the number of decoding rows does."""

Measure = Callable[[Callable[[], object]], float]
"""Returns for how many seconds a call keeps the device busy."""

log = logging.getLogger(__name__)


class Way(Protocol):
    """One implementation of attention over pages."""

    @property
    def name(self) -> str:
        """What the log calls it."""

    def serves(self, layer: PagedLayer) -> bool:
        """Whether it computes what a layer asks for."""

    def decode(self, queries: Tensor, layer: PagedLayer, step: PagedStep, out: Tensor) -> None:
        """Attend with the step's first rows, one a request, into those of `out`."""

    def prompts(self, queries: Tensor, layer: PagedLayer, step: PagedStep, out: Tensor) -> None:
        """Attend with all queries behind, into their rows of `out`."""


@dataclass(frozen=True, slots=True)
class Triton:
    """The kernels of our own: they serve all terms. `processors`: how many the device has."""

    processors: int
    name: str = "triton"

    def serves(self, layer: PagedLayer) -> bool:  # noqa: ARG002 - whatever it is
        """Return True."""
        return True

    def decode(self, queries: Tensor, layer: PagedLayer, step: PagedStep, out: Tensor) -> None:
        """Attend with the step's first rows, one a request."""
        operators.attend_decode(queries, layer, step, out, processors=self.processors)

    def prompts(self, queries: Tensor, layer: PagedLayer, step: PagedStep, out: Tensor) -> None:
        """Attend with the queries behind them."""
        operators.attend_prompts(queries, layer, step, out)


class PagedAttention:
    """Attends over pages, by the way that was found for a layer's terms and a step's size."""

    def __init__(self, *, processors: int, others: Sequence[Way] = (Varlen(),)) -> None:
        """Take the number of the device's processors, and what else may serve beside the kernels of our own."""
        self._own: Way = Triton(processors)
        self._others = others
        self._chosen: dict[tuple[Terms, int], Way] = {}

    def attend(self, queries: Tensor, layer: PagedLayer, step: PagedStep) -> Tensor:
        """Attend with a step's queries, (tokens, heads, size), to a layer's pages: (tokens, heads, value size).

        At most three launches, whatever the lengths are, and nobody waits for the device.
        """
        out = _room(queries, layer)
        if step.decode_rows:
            self._way(layer, step.decode_rows).decode(queries, layer, step, out)
        if step.longest_prompt:
            self._way(layer, PROMPTS).prompts(queries, layer, step, out)
        return out

    def choose(self, queries: Tensor, layer: PagedLayer, step: PagedStep, measure: Measure) -> None:
        """Find the faster way for steps like this one, which is of replies or of prompts alone. Waits for the device."""
        expected = _run(self._own, queries, layer, step)
        times = {self._own: measure(partial(_run, self._own, queries, layer, step))}
        for way in self._others:
            if way.serves(layer) and _is_right(way, queries, layer, step, expected):
                times[way] = measure(partial(_run, way, queries, layer, step))
        rows = step.decode_rows or PROMPTS
        self._chosen[layer.terms, rows] = min(times, key=times.__getitem__)
        told = ", ".join(f"{way.name} {seconds * 1e6:.0f} us" for way, seconds in times.items())
        log.info("attention of %s: %s", f"{rows} replies" if rows else "prompts", told)

    def _way(self, layer: PagedLayer, rows: int) -> Way:
        return self._chosen.get((layer.terms, rows), self._own)


def _run(way: Way, queries: Tensor, layer: PagedLayer, step: PagedStep) -> Tensor:
    out = _room(queries, layer)
    attend = way.decode if step.decode_rows else way.prompts
    attend(queries, layer, step, out)
    return out


def _room(queries: Tensor, layer: PagedLayer) -> Tensor:
    return queries.new_empty(*queries.shape[:2], layer.values.shape[3])


def _is_right(way: Way, queries: Tensor, layer: PagedLayer, step: PagedStep, expected: Tensor) -> bool:
    """Whether another way gives what ours does. Where it doesn't, the log says why it is not taken."""
    try:
        apart = (_run(way, queries, layer, step) - expected).abs().max() / expected.abs().max()
        found = float(apart)
    except RuntimeError as error:  # all that CUDA and its libraries say is of this class
        log.warning("attention by %s is not used, the device refuses it: %s", way.name, error)
        return False
    if not found <= DISAGREEMENT:
        log.warning("attention by %s is not used: it is %.2g apart from our own", way.name, found)
        return False
    return True
