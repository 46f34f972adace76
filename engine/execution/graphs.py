"""Decode steps recorded as CUDA graphs: one launch a step, where a plain one launches some hundred kernels.

Where recording fails, for whatever reason, the log says so once, and all steps are launched plainly from then on.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.slot_batch import Span, send
from engine.cache.slots import SlotCache
from engine.execution.padded_decode import DecodeShape, PaddedBatch, decode_shape, padded_inputs
from engine.model.fused_decoder import FusedDecoder

MOST_GRAPHS = 64
"""So many are kept, those that were used last."""

MOST_READ_IN_VAIN = 4 * 2**30
"""Bytes of keys and values. Beyond, one long reply among many short ones costs more than plain launches do.

About a millisecond or two on today's devices; reckoned, not measured.
"""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A graph; the tensors that it reads and writes are those of `CudaGraphs`."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor


class CudaGraphs:
    """Runs decode steps of one model on one cache, whose slots must not move; a spare one is behind the last."""

    def __init__(self, module: FusedDecoder, cache: SlotCache) -> None:
        self._module = module
        self._cache = cache
        self._device = module.device
        self._inputs = torch.zeros(3 * cache.slots, dtype=torch.int64, device=self._device)
        self._logits: Tensor | None = None
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._recorded: dict[DecodeShape, _Recorded] = {}
        self._resizes = cache.resizes
        self._bytes_per_token = 0
        self._failed = False

    def run(self, spans: Sequence[Span]) -> Tensor | None:
        """Compute a decode step: logits, (rows, vocabulary), in the order of the spans. None where a plain launch is due.

        Launches only, and waits for nothing unless the step's shape is new.
        """
        shape = self._shape(spans)
        recorded = None if shape is None else self._find(shape)
        if shape is None or recorded is None:
            return None
        rows = torch.tensor([span.slot for span in spans])
        padded = padded_inputs(spans, shape, spare=self._cache.slots)
        inputs, index = send([padded, rows], self._device)
        self._inputs_of(shape).copy_(inputs)
        recorded.graph.replay()
        self._cache.hold((span.slot, span.stop) for span in spans)
        return recorded.logits.index_select(0, index)

    def _shape(self, spans: Sequence[Span]) -> DecodeShape | None:
        """Return the shape to run a step in. None before the cache has layers, and where too much is read in vain."""
        cache = self._cache
        if self._failed or not cache.layers:
            return None
        shape = decode_shape(spans, slots=cache.slots, tokens=cache.tokens)
        self._bytes_per_token = self._bytes_per_token or cache.bytes_per_token
        if shape is None or shape.read_in_vain(spans) * self._bytes_per_token > MOST_READ_IN_VAIN:
            return None
        return shape

    def _find(self, shape: DecodeShape) -> _Recorded | None:
        """Return the graph of a shape, recorded now where there is none. None where that fails."""
        if self._resizes != self._cache.resizes:
            self._recorded.clear()
            self._resizes = self._cache.resizes
        recorded = self._recorded.pop(shape, None) or self._record_safely(shape)
        if recorded is not None:
            self._recorded[shape] = recorded
        return recorded

    def _record_safely(self, shape: DecodeShape) -> _Recorded | None:
        before = torch.cuda.current_stream(self._device)
        while len(self._recorded) >= MOST_GRAPHS:
            del self._recorded[next(iter(self._recorded))]
        try:
            with torch.cuda.device(self._device):
                return self._record(shape)
        except RuntimeError as error:  # lack of memory and all that CUDA says is of this class
            self._failed = True
            self._recorded.clear()
            log.warning("CUDA graphs are not used from now on: a decode step can't be recorded: %s", error)
            # A recording that broke off may have left its own stream behind.
            torch.cuda.set_stream(before)
            torch.cuda.synchronize(self._device)
            return None

    def _record(self, shape: DecodeShape) -> _Recorded:
        """Run a shape once for nobody, so that nothing is left to be made, and record it. Raises RuntimeError."""
        inputs = self._inputs_of(shape)
        inputs.zero_()
        inputs[2] = self._cache.slots
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            first = self._forward(self._layout(shape))
            if self._logits is None:
                self._logits = first.new_empty(self._cache.slots, first.shape[1])
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        logits, layout, graph = self._logits[: shape.rows], self._layout(shape), torch.cuda.CUDAGraph()
        # Other threads of this process prepare prompts: what they do must not end the recording.
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
            logits.copy_(self._forward(layout))
        return _Recorded(graph, logits)

    def _layout(self, shape: DecodeShape) -> PaddedBatch:
        """Make a layout for one pass: what it keeps for its layers has to be computed anew in a recording."""
        layout = PaddedBatch(self._inputs_of(shape), shape, tokens=self._cache.tokens)
        self._cache.begin(layout)
        return layout

    def _forward(self, layout: PaddedBatch) -> Tensor:
        logits: Tensor = self._module(
            input_ids=layout.input_ids,
            position_ids=layout.position_ids,
            past_key_values=self._cache,
            logits_to_keep=0,
            slots=layout,
        ).logits[0]
        return logits

    def _inputs_of(self, shape: DecodeShape) -> Tensor:
        """Return where all graphs of a shape read ids, positions and slots, (3, rows)."""
        return self._inputs[: 3 * shape.rows].view(3, shape.rows)
