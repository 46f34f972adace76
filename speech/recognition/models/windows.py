"""Cuts a long recording into windows for models with a limit of seconds, at its quietest points. Pure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from speech.recognition.models.interface import Wave
from speech.sound.pauses import quietest

LONGEST_S = 30.0
_SEARCHED = 1 / 3
"""The last part of the longest window, in which it may be cut."""
_SILENT = 1e-3
"""A window with no louder sample is skipped, since models invent words for it."""


def windows(wave: Wave, rate: int) -> list[tuple[int, int]]:
    """Return the beginning and the end of each window, in samples; silence is in none."""
    most = int(LONGEST_S * rate)
    cuts = [0]
    while len(wave) - cuts[-1] > most:
        start = cuts[-1] + most - int(most * _SEARCHED)
        cuts.append(quietest(wave, start, cuts[-1] + most, rate))
    cuts.append(len(wave))
    pairs = pairwise(cuts)
    return [(start, end) for start, end in pairs if np.abs(wave[start:end]).max(initial=0.0) > _SILENT]
