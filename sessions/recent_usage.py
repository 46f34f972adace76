"""Tells who works seldom: whose part of the recent work is small. Pure."""

from __future__ import annotations

from collections import Counter, deque

WINDOW = 1024
"""Pieces of recent work that are remembered."""
PART = 2
"""Whoever had at most half of an even part works seldom."""


class RecentUsage:
    """The recent work of all groups together, in pieces of one size."""

    def __init__(self, lately: int = WINDOW) -> None:
        self._lately = lately
        self._works: deque[tuple[str, int]] = deque()
        self._pieces = 0
        self._had: Counter[str] = Counter()

    def count(self, group: str, pieces: int = 1) -> None:
        """Count work that a group causes."""
        self._works.append((group, pieces))
        self._had[group] += pieces
        self._pieces += pieces
        while self._pieces > self._lately:
            forgotten, had = self._works.popleft()
            self._pieces -= had
            self._had[forgotten] -= had
            if not self._had[forgotten]:
                del self._had[forgotten]

    def is_light(self, group: str) -> bool:
        """Return whether a group had at most half of an even part."""
        return PART * len(self._had) * self._had.get(group, 0) <= self._pieces
