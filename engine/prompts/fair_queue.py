"""Orders work that is done one piece at a time: by priority, then fairly between groups, then between their clients. Pure.

Unlike the scheduler's waiting queue, it counts what was done for each: who has the least is next (start-time fair queuing,
Goyal, Vin and Cheng 1996). A newcomer starts level with those that wait, so idle time earns nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from engine.messages import IN_GROUP

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Shares:
    """How much was done for each name. Names that are level with the one served last are forgotten."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}
        self._level = 0

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def of(self, name: str) -> int:
        return max(self._done.get(name, 0), self._level)

    def serve(self, name: str, cost: int) -> None:
        self._level = self.of(name)
        self._done[name] = self._level + cost
        self._done = {one: done for one, done in self._done.items() if done > self._level}


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[K, T]):
    key: K
    work: T
    group: str
    client: str
    priority: int
    cost: int
    arrival: int


class FairQueue(Generic[K, T]):
    """Holds work under unique keys. `cost`: what a piece of work takes, in any unit."""

    def __init__(self) -> None:
        self._waiting: dict[K, _Waiting[K, T]] = {}
        self._groups = _Shares()
        self._clients: dict[str, _Shares] = {}
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[K]:
        return iter(self._waiting)

    def add(self, key: K, work: T, *, client: str = "", priority: int = 0, cost: int = 1) -> None:
        """Put work into the queue. It replaces work under the same key."""
        group = client.partition(IN_GROUP)[0]
        self._waiting[key] = _Waiting(key, work, group, client, priority, cost, next(self._arrivals))

    def remove(self, key: K) -> T | None:
        """Take work out, wherever it is; None if no work has that key."""
        one = self._waiting.pop(key, None)
        return None if one is None else one.work

    def pop(self) -> tuple[K, T]:
        """Take the next piece of work out, with its key. Raises ValueError if the queue is empty."""
        first = min(
            self._waiting.values(), key=lambda one: (-one.priority, self._groups.of(one.group), one.arrival)
        )
        clients = self._clients.setdefault(first.group, _Shares())
        own = (one for one in self._waiting.values() if one.group == first.group)
        one = min(own, key=lambda one: (-one.priority, clients.of(one.client), one.arrival))
        del self._waiting[one.key]
        self._groups.serve(one.group, one.cost)
        clients.serve(one.client, one.cost)
        waiting = {each.group for each in self._waiting.values()}
        self._clients = {
            group: shares
            for group, shares in self._clients.items()
            if group in waiting or group in self._groups
        }
        return one.key, one.work
