"""A histogram of durations in a fixed amount of memory. Pure."""

from __future__ import annotations

import math

SHORTEST_S = 1e-5
GROWTH = 1.02
"""The ratio of successive bounds: a percentile is off by one per cent at most."""
LONGEST_S = 3600.0
_RANGES = math.ceil(math.log(LONGEST_S / SHORTEST_S) / math.log(GROWTH)) + 2


class Histogram:
    """Counts durations, or other numbers from 0.00001 to 3,600. Values beyond count as the nearest bound."""

    __slots__ = ("_counts", "count", "least", "most", "total")

    def __init__(self) -> None:
        self._counts = [0] * _RANGES
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0

    def add(self, value: float) -> None:
        """Count one."""
        place = 0 if value <= SHORTEST_S else math.ceil(math.log(value / SHORTEST_S) / math.log(GROWTH))
        self._counts[min(place, _RANGES - 1)] += 1
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return self.total / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """Return the value that a share (0 to 1) of the values do not exceed; None without values."""
        if not self.count:
            return None
        wanted, seen = max(1, math.ceil(share * self.count)), 0
        for place, count in enumerate(self._counts):
            seen += count
            if seen >= wanted:
                middle = SHORTEST_S * math.pow(GROWTH, place - 0.5)
                return min(self.most, max(self.least, middle))
        return self.most
