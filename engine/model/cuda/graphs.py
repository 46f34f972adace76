"""Records decode steps as CUDA graphs and repeats them: one launch a step, where a plain one launches some hundred kernels.

A recorded step reads its input from one place. It has a fixed number of rows; idle rows at its end have no keys.
All steps are recorded at the start. If one number of rows can't be recorded, its steps are launched plainly.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.step_layout import NO_SLOT, Span, StepLayout, lay_out, packed, unpacked

Forward = Callable[[StepLayout], Tensor]
"""Computes a step, and returns its logits, (rows, vocabulary)."""

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Runs a step and records it. Returns what repeats it, and the logits that each repetition writes. Raises RuntimeError."""

IDLE = Span(0, -1, (0,), samples=True, pages=(NO_SLOT,))
"""An idle row. Its key would lie before the first position, so it has none."""

_FIELDS = (
    *("input_ids", "position_ids", "tables", "pages", "offsets"),
    *("query_starts", "lengths"),
)
"""The tensors of a layout. Those of int64 come first, so that all of them are aligned."""

FEW_ROWS = (1, 2, 4, 8)
ROWS_APART = 16

log = logging.getLogger(__name__)


class DecodeGraphs:
    """Runs decode steps of up to `most_rows` replies whose contexts have up to `most_pages` pages."""

    def __init__(
        self, forward: Forward, *, most_rows: int, most_pages: int, page_size: int, device: torch.device
    ) -> None:
        """Make room for the input of the largest step."""
        self._forward = forward
        self._most_pages = most_pages
        self._page_size = page_size
        self._device = device
        largest = packed(_tensors(self._host_layout([IDLE] * padded_rows(most_rows))))
        self._input = torch.zeros(len(largest), dtype=torch.uint8, device=device)
        self._recorded: dict[int, tuple[Callable[[], object], Tensor]] = {}
        self._rows = sorted({padded_rows(rows) for rows in range(1, most_rows + 1)}, reverse=True)
        """The numbers of rows that steps are recorded for, largest first: smaller ones fit into its memory pool."""

    @torch.inference_mode()
    def record(self, record: Record) -> None:
        """Record a step for each number of rows. If one can't be recorded, a warning is logged."""
        for rows in self._rows:
            layout = self._layout(rows)
            try:
                self._recorded[rows] = record(lambda layout=layout: self._forward(layout))  # type: ignore[misc]
            except RuntimeError as error:  # a lack of memory and all errors of CUDA are of this class
                log.warning(
                    "steps of %d replies are launched plainly, since they can't be recorded: %s", rows, error
                )

    def run(self, spans: Sequence[Span]) -> Tensor | None:
        """Launch a decode step, and return its logits, (rows, vocabulary), which the next step overwrites.

        Returns None if these spans need a plain launch. Waits for nothing.
        """
        rows = padded_rows(len(spans))
        recorded = self._recorded.get(rows)
        if recorded is None or not all(len(span.tokens) == 1 and span.samples for span in spans):
            return None
        host = packed(_tensors(self._host_layout([*spans, *[IDLE] * (rows - len(spans))])))
        if self._device.type == "cuda":
            host = torch.empty_like(host, pin_memory=True).copy_(host)
        self._input[: len(host)].copy_(host, non_blocking=True)
        repeat, logits = recorded
        repeat()
        return logits[: len(spans)]

    def _host_layout(self, spans: Sequence[Span]) -> StepLayout:
        return lay_out(
            spans, page_size=self._page_size, device=torch.device("cpu"), most_pages=self._most_pages
        )

    def _layout(self, rows: int) -> StepLayout:
        """Return the layout of all steps of `rows` rows. Its tensors are views of the input, its numbers the largest."""
        host = self._host_layout([IDLE] * rows)
        numbers = packed(_tensors(host))
        self._input[: len(numbers)].copy_(numbers)
        views = unpacked(self._input[: len(numbers)], _tensors(host))
        places: dict[str, Any] = dict(zip(_FIELDS, views, strict=True))
        # Tables of positions get their final size, and with it their address, from the longest context.
        longest = self._most_pages * self._page_size
        return replace(host, spans=((longest - 1, longest),) * rows, **places)


def padded_rows(rows: int) -> int:
    """Return the number of rows that a decode step of `rows` replies is recorded with."""
    if rows <= FEW_ROWS[-1]:
        return FEW_ROWS[bisect_left(FEW_ROWS, rows)]
    return -(-rows // ROWS_APART) * ROWS_APART


def _tensors(step: StepLayout) -> list[Tensor]:
    return [getattr(step, name) for name in _FIELDS]


class CudaRecorder:  # pragma: no cover - tests/gpu runs it where there is a device
    """Records steps on one device. They share memory, so only one of them may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> tuple[Callable[[], object], Tensor]:
        """Run a step once, so that everything it needs exists, then record it. Raises RuntimeError.

        Returns what replays the step, and the logits that each replay writes.
        """
        before = torch.cuda.current_stream(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            self._stream.wait_stream(before)
            with torch.cuda.stream(self._stream):
                run()
            before.wait_stream(self._stream)
            # CUDA calls of this process's other threads must not break the recording.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                logits = run()
        except RuntimeError:
            # A recording that failed may have left its own stream as the current one.
            torch.cuda.set_stream(before)
            torch.cuda.synchronize(self._device)
            raise
        return graph.replay, logits


class PendingTokens:
    """Numbers on their way from a device. Only a CUDA device makes anybody wait; others have them at once."""

    def __init__(self, numbers: Tensor) -> None:
        """Begin to fetch them, after all work that was launched so far."""
        self._there: Any = None
        self._host = numbers
        if numbers.device.type == "cuda":  # pragma: no cover - as above
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record(torch.cuda.current_stream(numbers.device))

    def numbers(self) -> list[int]:
        """Return them once they have arrived. Does not wait for work that was launched since."""
        if self._there is not None:  # pragma: no cover - as above
            self._there.synchronize()
        return self._host.tolist()
