"""The order of work: owners take turns piece by piece; an owner's works keep their order. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import zip_longest
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Numbered works, each of an owner."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, dict[int, T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._owners)

    def add(self, owner: str, number: int, work: T) -> None:
        """Add work after its owner's other works."""
        self._owners.setdefault(owner, {})[number] = work

    def next(self) -> tuple[int, T]:
        """Return the next work; then its owner is the last one. It stays until it is removed."""
        owner = next(iter(self._owners))
        self._owners.move_to_end(owner)
        return next(iter(self._owners[owner].items()))

    def remove(self, number: int) -> None:
        """Remove work, if it is there."""
        for owner, works in list(self._owners.items()):
            works.pop(number, None)
            if not works:
                del self._owners[owner]

    def several(self, most: int, fits: Callable[[T, T], bool]) -> list[tuple[int, T]]:
        """Return up to `most` works to do together: the next one, and others that fit it.

        Each owner's first work comes before any owner's second. Then the owner of the next work is the last one.
        """
        first = self.next()
        rest = [
            work for works in zip_longest(*(one.items() for one in self._owners.values())) for work in works
        ]
        others = [
            work for work in rest if work is not None and work[0] != first[0] and fits(first[1], work[1])
        ]
        return [first, *others[: most - 1]]
