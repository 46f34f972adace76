"""Limits how fast a server is read: a burst at once, then a fixed rate. Pure; the caller passes the time.

A leaky bucket as a meter (ITU-T I.371, appendix I). Only the server notices, by its socket's window.
"""

from __future__ import annotations

EVENT_COSTS = 8192
"""Bytes that an event counts as: it is parsed and checked several times, however short it is."""
RATE = 512 * 1024
"""Bytes per second: 64 events."""


class ReadRateLimiter:
    """The rate of one server. `burst`: bytes that are read without a pause."""

    def __init__(self, *, burst: int, rate: int = RATE) -> None:
        self._burst = burst
        self._rate = rate
        self._level = 0.0
        self._since = 0.0

    def pause(self, *, size: int, events: int, now: float) -> float:
        """Count what was read; return the seconds to wait before the next read."""
        self._level = max(0.0, self._level - (now - self._since) * self._rate)
        self._since = now
        self._level += size + events * EVENT_COSTS
        return max(0.0, (self._level - self._burst) / self._rate)
