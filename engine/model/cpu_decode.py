"""Decode steps of few rows on CPUs, with one call for a whole step: `cpu_decode.c`.

Knows where a step's tokens and logits are. Does not know why these tokens run, or what becomes of the logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.attention import cpu_kernels
from engine.cache.layout import Span
from engine.cache.paged_cache import LayerPages
from engine.model.cpu_model import CpuModel, check

MOST_ROWS = 64
"""Steps of more rows are computed like prompts, since their products take nearly all of the time."""

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_ssize_t


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "positions", "table", "logits", "room")),
        *((name, _COUNT) for name in ("rows", "columns", "threads", "room_bytes")),
    )


class CpuDecode:
    """Computes a model's decode steps."""

    def __init__(self, model: CpuModel) -> None:
        self._model = model
        self._room_bytes: dict[tuple[int, int], int] = {}

    def run(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Compute the token of each span, and store its keys and values. No two spans may write to the same page.

        Returns logits, (rows, vocabulary). Raises InvalidStep if a token, position or page is out of range.
        """
        table = self._model.prepare(spans, layers)
        rows, threads = len(spans), torch.get_num_threads()
        room = self._model.room(self._needed(rows, threads))
        given = torch.tensor(([span.tokens[0] for span in spans], [span.start for span in spans]))
        logits = self._model.logits(rows)
        step = _Step(
            tokens=given.data_ptr(),
            positions=given[1].data_ptr(),
            table=table.data_ptr(),
            logits=logits.data_ptr(),
            room=room.data_ptr(),
            rows=rows,
            columns=table.shape[1],
            threads=threads,
            room_bytes=room.numel(),
        )
        model = ctypes.byref(self._model.described)
        check(cpu_kernels.library().midstream_decode(model, ctypes.byref(step)))
        return logits

    def _needed(self, rows: int, threads: int) -> int:
        """Return how many bytes of room a step needs."""
        known = self._room_bytes.get((rows, threads))
        if known is None:
            room = cpu_kernels.library().midstream_decode_room
            known = self._room_bytes[rows, threads] = room(ctypes.byref(self._model.described), rows, threads)
        return known
