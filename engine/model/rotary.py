"""Cosines and sines of rotary position embeddings, computed once and looked up in each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

FIXED_ROTARIES = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds whose angles at a position do not change with the length of the text."""

_FIRST_POSITIONS = 2048


class RotaryTable:
    """Looks up the angles of a transformers rotary embedding. Its tables grow with the positions that are asked for."""

    def __init__(self, rotary: Any) -> None:
        """Take a rotary embedding of one of `FIXED_ROTARIES`."""
        self._rotary = rotary
        self._cosine: Tensor | None = None
        self._sine: Tensor | None = None

    def at(self, positions: Tensor, extent: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return cosines and signed sines, each (rows, 1, size), of positions below `extent`.

        The first half of the sines is negated, so a roll by half the size replaces transformers' `rotate_half`.
        """
        cosine, sine = self.tables(extent, positions.device, dtype)
        return cosine[positions].unsqueeze(1), sine[positions].unsqueeze(1)

    def tables(self, extent: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return all cosines and signed sines, each (positions, size) with `extent` positions or more."""
        if self._cosine is None or self._sine is None or len(self._cosine) < extent:
            self._cosine, self._sine = self._computed(extent, device, dtype)
        return self._cosine, self._sine

    def _computed(self, extent: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        count = _FIRST_POSITIONS
        while count < extent:
            count *= 2
        like = torch.empty((), dtype=dtype, device=device)
        cosine, sine = self._rotary(like, torch.arange(count, device=device).unsqueeze(0))
        half = sine.shape[-1] // 2
        return cosine[0].contiguous(), torch.cat((-sine[0, :, :half], sine[0, :, half:]), dim=-1)
