"""Steps with chunks of prompts on CPUs, with one call for a whole step: `cpu_prefill.c`.

Knows where a step's tokens and logits are. Does not know why these tokens run, or what becomes of the logits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate, chain

import torch
from torch import Tensor

from engine.attention import cpu_kernels
from engine.cache.layout import Span
from engine.cache.paged_cache import LayerPages
from engine.model.cpu_linear import has_tiles
from engine.model.cpu_model import CpuModel, InvalidStep, check
from engine.model.fused_decoder import FusedDecoder
from engine.model.int8_linear import Int8Linear

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_ssize_t


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "spans", "table", "kept", "logits", "room")),
        *((name, _COUNT) for name in ("rows", "span_count", "columns", "kept_count")),
        *((name, _COUNT) for name in ("threads", "room_bytes")),
    )


class CpuPrefill:
    """Computes a model's steps of any spans."""

    def __init__(self, model: CpuModel) -> None:
        self._model = model

    def run(self, spans: Sequence[Span], layers: Sequence[LayerPages]) -> Tensor:
        """Compute the tokens of spans, and store their keys and values. No two spans may write to the same page.

        Returns the logits behind the last token of each span that samples, (rows, vocabulary). Raises InvalidStep if
        a token, position or page is out of range.
        """
        if not all(span.tokens for span in spans):
            raise InvalidStep("a span of no tokens")
        table = self._model.prepare(spans, layers)
        counts = [len(span.tokens) for span in spans]
        stops = list(accumulate(counts))
        rows = zip(stops, counts, spans, strict=True)
        places = torch.tensor([(stop - count, span.start, count) for stop, count, span in rows])
        tokens = torch.tensor(list(chain.from_iterable(span.tokens for span in spans)))
        sampled = [stop - 1 for stop, span in zip(stops, spans, strict=True) if span.samples]
        kept = torch.tensor(sampled, dtype=torch.int64)
        logits = self._model.logits(len(kept))
        step = _Step(
            tokens=tokens.data_ptr(),
            spans=places.data_ptr(),
            table=table.data_ptr(),
            kept=kept.data_ptr(),
            logits=logits.data_ptr(),
            rows=len(tokens),
            span_count=len(spans),
            columns=table.shape[1],
            kept_count=len(kept),
            threads=torch.get_num_threads(),
        )
        library, model = cpu_kernels.library(), ctypes.byref(self._model.described)
        room = self._model.room(library.midstream_prefill_room(model, ctypes.byref(step)))
        step.room, step.room_bytes = room.data_ptr(), room.numel()
        check(library.midstream_prefill(model, ctypes.byref(step)))
        return logits


def prefills(decoder: FusedDecoder) -> bool:
    """Whether the kernel serves a model that `is_known` (`engine.model.cpu_model`) faster than the layers do.

    Measured with bfloat16 in pairs, and float32 in AVX-512 and AVX2. torch uses AMX tiles if the processor has them, and
    bfloat16 without pairs takes as long as float32. int8 would have to be widened for each block of rows: 1.2 times the
    layers' time.
    """
    widths = {decoder.embedding.embedding_dim, *(layer.down.weight.shape[1] for layer in decoder.layers)}  # type: ignore[union-attr, index] # a ModuleList knows no kinds
    if any(width % 2 for width in widths) or any(isinstance(part, Int8Linear) for part in decoder.modules()):
        return False
    if decoder.dtype is torch.float32:
        return cpu_kernels.has_wide_vectors()
    return cpu_kernels.has_pairs() and not has_tiles()
