"""Draws from rows of scores on a CUDA device without waiting for it: random numbers are sent ahead, tokens stay there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from engine.model.devices import sent

ROUNDS = 32
"""The most draws of a row. A nucleus of mass p takes at most ln(1/p) rounds on average, so no more are needed."""

BLOCK = 4096
"""Scores that a row's program reads at a time."""

_library: Any = torch.library.Library("midstream_sampling", "DEF")  # type: ignore[no-untyped-call]
_library.define("draw(Tensor scores, Tensor top_p, Tensor levels) -> Tensor")


def draw(scores: Tensor, top_p: Tensor | None, randoms: Sequence[Random]) -> Tensor:
    """Draw a token of each row of scores, (rows, vocabulary) of float32, from its nucleus: (rows, 1) of int64.

    `top_p`, (rows, 1): infinite for a row without a nucleus; None if no row has one. A row with NaN gives -1. Each row
    takes the same amount of random numbers, however many it needs.
    """
    limits = scores.new_full((len(scores), 1), math.inf) if top_p is None else top_p
    return torch.ops.midstream_sampling.draw(scores, limits, _levels(randoms, scores.device))  # type: ignore[no-any-return]


def _levels(randoms: Sequence[Random], device: torch.device) -> Tensor:
    numbers = bytearray(b"".join(random.randbytes(4 * ROUNDS) for random in randoms))
    return sent(torch.frombuffer(numbers, dtype=torch.int32).view(len(randoms), ROUNDS), device)


def _launch(scores: Tensor, top_p: Tensor, levels: Tensor) -> Tensor:
    from engine.model.cuda import kernels  # noqa: PLC0415 - Triton comes with torch for CUDA only

    rows, vocabulary = scores.shape
    tokens = torch.empty(rows, 1, dtype=torch.int64, device=scores.device)
    kernels.draw_rows[(rows,)](
        scores, top_p, levels, tokens, scores.stride(0), vocabulary, ROUNDS=ROUNDS, BLOCK=BLOCK, num_warps=16
    )
    return tokens


def _fake(scores: Tensor, top_p: Tensor, levels: Tensor) -> Tensor:
    if not scores.device == top_p.device == levels.device:
        raise ValueError("scores, limits and levels are on several devices")
    return scores.new_empty((len(scores), 1), dtype=torch.int64)


for _device in ("CUDA", "CPU"):  # on a CPU tests run it in Triton's interpreter
    _library.impl("draw", _launch, _device)
torch.library.register_fake("midstream_sampling::draw", _fake, lib=_library)
