"""Orders work that is done one piece at a time: by priority, then fairly between groups, then between their clients. Pure.

It is weighted fair queuing with equal weights (Demers, Keshav and Shenker 1989). If all who wait were served at once, each
at the same pace, the one whose piece would be complete first is next. So a short piece does not wait for one long piece of
each of the others, and a long one is not passed by for ever. Idle time earns nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, TypeVar

from engine.messages import GROUP_SEPARATOR

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class _Shares:
    """When the next piece of each name begins, in the units that each had by now if all were served at once."""

    def __init__(self) -> None:
        self._begins: dict[str, float] = {}
        self._now = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._begins

    def come(self, name: str) -> None:
        """Note that a name waits, which did not wait before."""
        self._begins[name] = max(self._begins.get(name, 0.0), self._now)

    def end(self, name: str, cost: int) -> float:
        """Return when the next piece of a name that waits would be complete."""
        return self._begins[name] + cost

    def serve(self, name: str, cost: int, waiting: set[str]) -> None:
        """Note that a piece of a name was served. `waiting`: the names that wait behind it."""
        self._begins[name] += cost
        self._now += cost / len(waiting | {name})
        self._begins = {
            one: begins for one, begins in self._begins.items() if one in waiting or begins > self._now
        }


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[K, T]):
    key: K
    work: T
    group: str
    client: str
    priority: int
    cost: int
    arrival: int

    @property
    def order(self) -> tuple[int, int]:
        """Its order among those of its client."""
        return -self.priority, self.arrival


class FairQueue(Generic[K, T]):
    """Holds work under unique keys. `cost`: what a piece of work takes, in any unit."""

    def __init__(self) -> None:
        self._waiting: dict[K, _Waiting[K, T]] = {}
        self._groups = _Shares()
        self._clients: dict[str, _Shares] = {}
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return (one.work for one in self._waiting.values())

    def add(self, key: K, work: T, *, client: str = "", priority: int = 0, cost: int = 1) -> None:
        """Put work into the queue. It replaces work under the same key, of the same client, and keeps what that waited."""
        group = client.partition(GROUP_SEPARATOR)[0]
        clients = self._clients.setdefault(group, _Shares())
        others = [one for one in self._waiting.values() if one.group == group]
        if not others:
            self._groups.come(group)
        if all(one.client != client for one in others):
            clients.come(client)
        self._waiting[key] = _Waiting(key, work, group, client, priority, cost, next(self._arrivals))

    def remove(self, key: K) -> T | None:
        """Take work out, wherever it is; None if no work has that key."""
        one = self._waiting.pop(key, None)
        return None if one is None else one.work

    def pop(self) -> tuple[K, T]:
        """Take the next piece of work out, with its key. Raises ValueError if the queue is empty."""
        one = min(
            self._firsts(),
            key=lambda one: (-one.priority, self._groups.end(one.group, one.cost), one.arrival),
        )
        del self._waiting[one.key]
        others = self._waiting.values()
        self._groups.serve(one.group, one.cost, {each.group for each in others})
        kin = {each.client for each in others if each.group == one.group}
        self._clients[one.group].serve(one.client, one.cost, kin)
        waiting = {each.group for each in others}
        self._clients = {
            group: shares
            for group, shares in self._clients.items()
            if group in waiting or group in self._groups
        }
        return one.key, one.work

    def _firsts(self) -> list[_Waiting[K, T]]:
        """Return the next piece of each group."""
        of_clients: dict[str, _Waiting[K, T]] = {}
        for one in self._waiting.values():
            first = of_clients.get(one.client)
            if first is None or one.order < first.order:
                of_clients[one.client] = one
        of_groups: dict[str, _Waiting[K, T]] = {}
        for one in of_clients.values():
            first = of_groups.get(one.group)
            if first is None or self._of_group(one) < self._of_group(first):
                of_groups[one.group] = one
        return list(of_groups.values())

    def _of_group(self, one: _Waiting[K, T]) -> tuple[int, float, int]:
        """Return its order among those of its group."""
        return -one.priority, self._clients[one.group].end(one.client, one.cost), one.arrival
