"""Sound that a detector takes for a voice: a buzz with the harmonics and the rhythm of one."""

from __future__ import annotations

import numpy as np

RATE = 16_000


def voiced(ms: int) -> bytes:
    """So much of it, 16-bit PCM."""
    time = np.arange(RATE * ms // 1000) / RATE
    buzz = sum(np.sin(2 * np.pi * 130 * harmonic * time) / harmonic for harmonic in range(1, 25))
    loud = 0.75 + 0.25 * np.sin(2 * np.pi * 4 * time)
    return (6000 * buzz * loud).astype("<i2").tobytes()


def silence(ms: int) -> bytes:
    """So much of none."""
    return bytes(2 * (RATE * ms // 1000))
