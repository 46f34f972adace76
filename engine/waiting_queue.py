"""Requests that wait for a slot: by priority, then fair between clients, then first come, first served. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar


class Waiting(Protocol):
    """What the queue looks at. `arrival` counts up."""

    @property
    def client(self) -> str:
        """Whose request it is."""
        ...

    @property
    def priority(self) -> int:
        """The higher, the sooner."""
        ...

    @property
    def arrival(self) -> int:
        """The place in the order of submission."""
        ...


W = TypeVar("W", bound=Waiting)


class WaitingQueue(Generic[W]):
    """Who is next is decided when there is room: the client that has the fewest running goes first."""

    def __init__(self) -> None:
        self._waiting: dict[int, W] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, one: W) -> bool:
        return one.arrival in self._waiting

    def add(self, one: W) -> None:
        """Put one into the queue; one that was there before comes back to its old place."""
        self._waiting[one.arrival] = one

    def remove(self, one: W) -> None:
        """Take one out, wherever it is."""
        del self._waiting[one.arrival]

    def first(self, running: Mapping[str, int]) -> W:
        """Return the one to start next. `running`: how many of each client run."""
        return min(
            self._waiting.values(), key=lambda one: (-one.priority, running.get(one.client, 0), one.arrival)
        )

    def in_order(self, running: Mapping[str, int]) -> Iterator[W]:
        """Yield all, in the order in which they would start if nobody else came or went."""
        ahead: Counter[str] = Counter(running)
        keyed = []
        for one in sorted(self._waiting.values(), key=lambda one: (-one.priority, one.arrival)):
            keyed.append((-one.priority, ahead[one.client], one.arrival, one))
            ahead[one.client] += 1
        yield from (one for *_, one in sorted(keyed, key=lambda entry: entry[:3]))
