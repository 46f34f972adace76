"""Decode steps laid out by their size alone: a row for every slot below a number, whoever is in it, read equally far.

Steps of one shape then read and write the same addresses, which is what a recorded step needs to be repeated. Rows of
idle slots write to a spare slot, and nobody reads what they give. Knows no CUDA.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.cache.slot_batch import DecodeGroup, SlotBatch, Span

FEW_ROWS = (1, 2, 4, 8)
ROWS_APART = 16
FIRST_EXTENT = 256


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """How many slots have a row, and how many positions of each are read."""

    rows: int
    extent: int

    def read_in_vain(self, spans: Sequence[Span]) -> int:
        """Count the positions that are read for nobody."""
        return self.rows * self.extent - sum(span.stop for span in spans)


def decode_shape(spans: Sequence[Span], *, slots: int, tokens: int) -> DecodeShape | None:
    """Return the smallest shape for a step in a cache of so many slots and tokens.

    None where a part of a prompt is in it, or a row whose logits nobody wants.
    """
    if not all(span.samples and len(span.tokens) == 1 for span in spans):
        return None
    needed = max(span.slot for span in spans) + 1
    rows = -(-needed // ROWS_APART) * ROWS_APART
    if needed <= FEW_ROWS[-1]:
        rows = FEW_ROWS[bisect_left(FEW_ROWS, needed)]
    return DecodeShape(min(rows, slots), min(_extent(max(span.stop for span in spans)), tokens))


def _extent(needed: int) -> int:
    """Round up to a power of two or one and a half of it: at most a third is read in vain, and there are few."""
    extent = FIRST_EXTENT
    while extent < needed:
        extent *= 2
    between = extent // 4 * 3
    return between if needed <= between and extent > FIRST_EXTENT else extent


def padded_inputs(spans: Sequence[Span], shape: DecodeShape, *, spare: int) -> Tensor:
    """Return ids, positions and the slots that are written, (3, rows) of int64 on the host."""
    columns = [(0, 0, spare)] * shape.rows
    for span in spans:
        columns[span.slot] = (span.tokens[0], span.start, span.slot)
    return torch.tensor(columns).t().contiguous()


class PaddedBatch(SlotBatch):
    """The layout of all steps of one shape. What differs between them is in `inputs` alone, as `padded_inputs` has it."""

    def __init__(self, inputs: Tensor, shape: DecodeShape, *, tokens: int) -> None:
        """`tokens`: positions in a slot. The tensors of the layout are views of `inputs`: it may be overwritten."""
        # Made on the host, so that nothing is sent while a step is recorded; then all tensors are those of `inputs`.
        last = Span(shape.rows - 1, 0, (0,), samples=True)
        super().__init__([last], tokens=tokens, device=torch.device("cpu"))
        self.input_ids, self.position_ids, self.row_slots = inputs[0:1], inputs[1:2], inputs[2]
        self.decode_slots, self.decode_positions = inputs[2], inputs[1]
        self.decode_rows = shape.rows
        self.stops = ()
        self.extent = tokens  # tables of positions get their final size, and with it their address
        whole = slice(0, shape.rows)
        self.groups = [DecodeGroup(whole, whole, shape.extent, members=None, query_positions=inputs[1])]
