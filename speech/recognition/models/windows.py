"""Where a long recording is cut for models that take so many seconds at once: where it is quietest. Pure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from speech.recognition.models.hearing import Wave

LONGEST_S = 30.0
_HOP_S = 0.02
_SOFT_HOPS = 5
"""Loudness is the mean of so many: a single quiet moment inside a word is no pause."""
_SEARCHED = 1 / 3
"""Of the longest window: its last part, in which it may be cut."""
_SILENT = 1e-3
"""A window in which nothing is louder has nothing to hear, and models invent words for it."""


def windows(wave: Wave, rate: int) -> list[tuple[int, int]]:
    """Return where each window begins and ends, in samples; what is silent is in none."""
    most = int(LONGEST_S * rate)
    cuts = [0]
    while len(wave) - cuts[-1] > most:
        start = cuts[-1] + most - int(most * _SEARCHED)
        cuts.append(_quietest(wave, start, cuts[-1] + most, int(_HOP_S * rate)))
    cuts.append(len(wave))
    pairs = pairwise(cuts)
    return [(start, end) for start, end in pairs if np.abs(wave[start:end]).max(initial=0.0) > _SILENT]


def _quietest(wave: Wave, start: int, end: int, hop: int) -> int:
    """Return the middle of the quietest tenth of a second."""
    hops = wave[start:end][: (end - start) // hop * hop].reshape(-1, hop)
    loudness = np.square(hops).mean(axis=1)
    soft = np.convolve(loudness, np.ones(_SOFT_HOPS), mode="valid")
    return start + int(soft.argmin()) * hop + _SOFT_HOPS * hop // 2
