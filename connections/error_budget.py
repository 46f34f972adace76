"""How many bad frames a client may send before it counts as broken. Pure; the caller passes the time."""

from __future__ import annotations

from collections import deque


class ErrorBudget:
    """Counts within a sliding window."""

    def __init__(self, *, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._times: deque[float] = deque(maxlen=limit)

    def add(self, now: float) -> bool:
        """Count one at `now` (seconds of any monotonic clock); return whether the limit was reached within the window."""
        self._times.append(now)
        return len(self._times) == self._limit and now - self._times[0] < self._window_s
