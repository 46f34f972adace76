"""A histogram of durations that is cheap to update. Knows no metrics library."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds, for what happens with every token."""


class Durations:
    """Counters. One thread counts; a reader may be one duration behind."""

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float] = SHORT) -> None:
        """Take the upper bounds of the ranges, in seconds and in order; longer durations have a range of their own."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds
