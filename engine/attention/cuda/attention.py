"""Attention over the pages of the KV cache on a CUDA device: one function, with the faster of two kernels behind it.

Which kernel is faster is measured once, at the start, for each kind of layer and each number of rows that decode steps
are recorded for. A kernel that the device refuses, or that disagrees with Triton's, is not used, and the log says so.
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

from engine.attention.backend import AttentionParams
from engine.attention.cuda import operators
from engine.attention.cuda.operators import AttentionInputs
from engine.attention.cuda.varlen import Varlen
from engine.cache.layout import StepLayout
from engine.cache.paged_cache import LayerPages

DISAGREEMENT = 0.02
"""How far two kernels may be apart, relative to the largest number of Triton's: bfloat16 keeps 8 bits."""

PROMPTS = 0
"""Stands for prompts in place of a number of decoding rows."""

FEW_ROWS = (PROMPTS, 1, 2, 4, 8)
ROWS_APART = 16

Measure = Callable[[Callable[[], None]], float]
"""Returns how many seconds a call keeps the device busy."""

log = logging.getLogger(__name__)


class AttentionKernel(Protocol):
    """One implementation of attention over pages."""

    @property
    def name(self) -> str:
        """Its name in the log."""

    def serves(self, inputs: AttentionInputs) -> bool:
        """Whether it can compute a layer's attention."""

    def decode(self, inputs: AttentionInputs) -> None:
        """Attend with the step's first rows, one a request."""

    def prompts(self, inputs: AttentionInputs) -> None:
        """Attend with all queries behind the decoding rows."""


@dataclass(frozen=True, slots=True)
class Triton:
    """Midstream's Triton kernels, which serve all terms. `processors`: the device's number of multiprocessors."""

    processors: int
    name: str = "triton"

    def serves(self, inputs: AttentionInputs) -> bool:  # noqa: ARG002 - it serves all
        """Return True."""
        return True

    def decode(self, inputs: AttentionInputs) -> None:
        """Attend with the step's first rows, one a request."""
        operators.attend_decode(inputs, processors=self.processors)

    def prompts(self, inputs: AttentionInputs) -> None:
        """Attend with the queries behind them."""
        operators.attend_prompts(inputs)


class Cuda:
    """A `Backend` that attends with the kernel that was faster for a layer's terms and a step's size."""

    def __init__(self, *, processors: int, others: Sequence[AttentionKernel] = (Varlen(),)) -> None:
        """Take the device's number of multiprocessors, and the alternatives to the Triton kernels."""
        self._own: AttentionKernel = Triton(processors)
        self._others = others
        self._chosen: dict[tuple[AttentionParams, int], AttentionKernel] = {}
        self.measure: Measure | None = None
        """While it is set, the first step of a kind measures which kernel is faster, and waits for the device."""

    def store(self, layer: LayerPages, step: StepLayout, keys: Tensor, values: Tensor) -> None:
        """See `Backend`."""
        operators.store(layer, step, keys, values)

    def attend(
        self,
        queries: Tensor,
        layer: LayerPages,
        step: StepLayout,
        terms: AttentionParams,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Backend`. Makes at most three launches, whatever the lengths are, and does not wait for the device.

        Idle rows behind prompts hold undefined values.
        """
        inputs = AttentionInputs(queries, layer, step, terms, _room(queries, layer), sinks)
        if step.decode_rows:
            self._way(inputs, step.decode_rows).decode(inputs)
        if step.longest_prompt:
            self._way(inputs, PROMPTS).prompts(inputs)
        return inputs.out

    def _way(self, inputs: AttentionInputs, rows: int) -> AttentionKernel:
        kind = inputs.terms, padded_rows(rows)
        if self.measure is not None and kind not in self._chosen:
            self._chosen[kind] = self._faster(inputs, rows, self.measure)
        return self._chosen.get(kind, self._own)

    def _faster(self, inputs: AttentionInputs, rows: int, measure: Measure) -> AttentionKernel:
        """Return the faster kernel for steps like this one. Compiles kernels, and waits for the device."""
        tried = replace(inputs, out=torch.zeros_like(inputs.out))
        calls = {
            way: partial(way.decode if rows else way.prompts, tried) for way in (self._own, *self._others)
        }
        calls[self._own]()
        expected = tried.out.clone()
        times = {self._own: measure(calls[self._own])}
        for way in self._others:
            if way.serves(tried) and _is_right(way, calls[way], tried.out, expected):
                times[way] = measure(calls[way])
        timings = ", ".join(f"{way.name} {seconds * 1e6:.0f} us" for way, seconds in times.items())
        log.info("attention of %s: %s", f"{rows} replies" if rows else "prompts", timings)
        return min(times, key=times.__getitem__)


def padded_rows(rows: int) -> int:
    """Return the number of rows that a decode step of `rows` replies is recorded and measured with."""
    if rows <= FEW_ROWS[-1]:
        return FEW_ROWS[bisect_left(FEW_ROWS, rows)]
    return -(-rows // ROWS_APART) * ROWS_APART


def _room(queries: Tensor, layer: LayerPages) -> Tensor:
    return queries.new_empty(*queries.shape[:2], layer.values.shape[3])


def _is_right(way: AttentionKernel, call: Callable[[], None], out: Tensor, expected: Tensor) -> bool:
    """Whether another kernel agrees with Triton's. If not, the log says why it is not used."""
    try:
        call()
        found = float((out - expected).abs().max() / expected.abs().max())
    except (RuntimeError, TypeError, ValueError) as error:  # of CUDA, or of a function with other arguments
        log.warning("attention by %s is not used, since the device refuses it: %s", way.name, error)
        return False
    if not found <= DISAGREEMENT:  # also true for NaN
        log.warning("attention by %s is not used, since it is %.2g apart from ours", way.name, found)
        return False
    return True
