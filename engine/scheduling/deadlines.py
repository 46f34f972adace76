"""Keeps deadlines, and tells whose time has come. Pure: times are passed in."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Things with unique keys, each due at a time. A removed thing is forgotten at once."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int]] = []
        self._things: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._things)

    def add(self, key: int, due: float, thing: T) -> None:
        """Add a thing."""
        self._things[key] = thing
        heapq.heappush(self._due, (due, key))

    def remove(self, key: int) -> None:
        """Forget a thing, if it is known."""
        self._things.pop(key, None)
        if len(self._due) > 2 * len(self._things) + 64:
            self._due = [entry for entry in self._due if entry[1] in self._things]
            heapq.heapify(self._due)

    def due(self, now: float) -> Iterator[T]:
        """Yield the things whose time has come, earliest first, and forget them."""
        while self._due and self._due[0][0] <= now:
            thing = self._things.pop(heapq.heappop(self._due)[1], None)
            if thing is not None:
                yield thing
