"""Finds the best place to cut sound. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

HOP_S = 0.02
_SOFT_HOPS = 5
"""Hops whose mean is the loudness: one quiet hop within a word is not a pause."""


def quietest(wave: npt.NDArray[Any], start: int, end: int, rate: int) -> int:
    """Return the middle of the quietest tenth of a second between two samples."""
    hop = int(HOP_S * rate)
    hops = wave[start:end][: (end - start) // hop * hop].astype(np.float32).reshape(-1, hop)
    loudness = np.square(hops).mean(axis=1)
    soft = np.convolve(loudness, np.ones(_SOFT_HOPS), mode="valid")
    return start + int(soft.argmin()) * hop + _SOFT_HOPS * hop // 2
