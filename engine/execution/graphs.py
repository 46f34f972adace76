"""Records decode steps once and repeats them: one launch a step, where a plain one launches some hundred kernels.

A recorded step reads its input from one place. It has a fixed number of rows; idle rows at its end have no keys.
All steps are recorded at the start. If one number of rows can't be recorded, its steps are launched plainly.
Knows no CUDA: the caller passes in how a step is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from engine.attention.cuda.attention import padded_rows
from engine.cache.layout import NO_SLOT, Span, StepLayout, lay_out

Forward = Callable[[StepLayout], Tensor]
"""Computes a step, and returns its logits, (rows, vocabulary)."""

Record = Callable[[Callable[[], Tensor]], tuple[Callable[[], object], Tensor]]
"""Runs a step and records it. Returns what repeats it, and the logits that each repetition writes. Raises RuntimeError."""

IDLE = Span(0, -1, (0,), samples=True, pages=(NO_SLOT,))
"""An idle row. Its key would lie before the first position, so it has none."""

_FIELDS = (
    *("input_ids", "position_ids", "tables", "pages", "offsets"),
    *("query_starts", "lengths", "key_starts"),
)
"""The tensors of a layout. Those of int64 come first, so that all of them are aligned."""

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
        largest = _packed(self._host_layout([IDLE] * padded_rows(most_rows)))
        self._input = torch.zeros(len(largest), dtype=torch.uint8, device=device)
        self._recorded: dict[int, tuple[Callable[[], object], Tensor]] = {}
        self._rows = sorted({padded_rows(rows) for rows in range(1, most_rows + 1)}, reverse=True)

    @property
    def rows(self) -> list[int]:
        """The numbers of rows that steps are recorded for, largest first: smaller ones fit into its memory."""
        return self._rows

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
        host = _packed(self._host_layout([*spans, *[IDLE] * (rows - len(spans))]))
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
        tensors = _tensors(host)
        packed = _packed(host)
        self._input[: len(packed)].copy_(packed)
        parts = torch.split(self._input[: len(packed)], [one.nbytes for one in tensors])
        views = [part.view(one.dtype).view(one.shape) for part, one in zip(parts, tensors, strict=True)]
        places: dict[str, Any] = dict(zip(_FIELDS, views, strict=True))
        # Tables of positions get their final size, and with it their address, from the longest context.
        longest = self._most_pages * self._page_size
        return replace(host, spans=((longest - 1, longest),) * rows, **places)


def _tensors(step: StepLayout) -> list[Tensor]:
    return [getattr(step, name) for name in _FIELDS]


def _packed(step: StepLayout) -> Tensor:
    """Return all tensors of a layout as one tensor of bytes."""
    return torch.cat([one.reshape(-1).view(torch.uint8) for one in _tensors(step)])
