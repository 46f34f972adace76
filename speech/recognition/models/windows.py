"""Where a long recording is cut for models that take so many seconds at once: where it is quietest. Pure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from speech.recognition.models.hearing import Wave
from speech.sound.pauses import quietest

LONGEST_S = 30.0
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
        cuts.append(quietest(wave, start, cuts[-1] + most, rate))
    cuts.append(len(wave))
    pairs = pairwise(cuts)
    return [(start, end) for start, end in pairs if np.abs(wave[start:end]).max(initial=0.0) > _SILENT]
