"""Fair orders of requests: by priority, then between groups, then between their clients. Pure.

A client is named `GROUP` + `GROUP_SEPARATOR` + its own name, or only by its name. Groups come first, so that somebody with
a thousand names at one address does not get ahead of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

from engine.messages import GROUP_SEPARATOR

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
QueueOrder = tuple[int, int, int, int]


class _Shares:
    """The virtual time at which each name's next piece begins: the cost that each has had by then, if all are served at once."""

    def __init__(self) -> None:
        self._begins: dict[str, float] = {}
        self._now = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._begins

    def come(self, name: str) -> None:
        """Note that a name begins to wait."""
        self._begins[name] = max(self._begins.get(name, 0.0), self._now)

    def end(self, name: str, cost: int) -> float:
        """Return the virtual time at which the next piece of a waiting name ends."""
        return self._begins[name] + cost

    def serve(self, name: str, cost: int, waiting: set[str]) -> None:
        """Note that a piece of a name was served. `waiting`: the names that still wait."""
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
        """Put work into the queue. It replaces work of the same client under the same key, whose waiting still counts."""
        group = _group(client)
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
        waiting = {each.group for each in others}
        self._groups.serve(one.group, one.cost, waiting)
        kin = {each.client for each in others if each.group == one.group}
        self._clients[one.group].serve(one.client, one.cost, kin)
        self._clients = {
            group: shares
            for group, shares in self._clients.items()
            if group in waiting or group in self._groups
        }
        return one.key, one.work

    def _firsts(self) -> list[_Waiting[K, T]]:
        """Return the next piece of each group."""
        last_first = sorted(
            self._waiting.values(), key=lambda one: (-one.priority, one.arrival), reverse=True
        )
        of_clients = {one.client: one for one in last_first}
        last_first = sorted(
            of_clients.values(),
            key=lambda one: (-one.priority, self._clients[one.group].end(one.client, one.cost), one.arrival),
            reverse=True,
        )
        return list({one.group: one for one in last_first}.values())


class Waiting(Protocol):
    """What the queue reads of a request. `arrival` counts up."""

    @property
    def client(self) -> str:
        """The client's name."""
        ...

    @property
    def priority(self) -> int:
        """Requests of a higher priority start sooner."""
        ...

    @property
    def arrival(self) -> int:
        """The place in the order of submission."""
        ...


W = TypeVar("W", bound=Waiting)


class Running:
    """Counts the running requests of each group and of each client."""

    def __init__(self) -> None:
        self._groups: Counter[str] = Counter()
        self._clients: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._clients.total()

    def of(self, client: str) -> tuple[int, int]:
        """Return how many requests of a client's group run, and how many of the client itself."""
        return self._groups[_group(client)], self._clients[client]

    def add(self, client: str) -> None:
        """Count one more request of a client."""
        self._groups[_group(client)] += 1
        self._clients[client] += 1

    def remove(self, client: str) -> None:
        """Count one request fewer of a client. A group or client that runs nothing is forgotten."""
        for counts, name in ((self._groups, _group(client)), (self._clients, client)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


class WaitingQueue(Generic[W]):
    """Decides whose request is next: of the group with the fewest running requests, its client with the fewest."""

    def __init__(self) -> None:
        self._waiting: dict[int, W] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, one: W) -> bool:
        return one.arrival in self._waiting

    def add(self, one: W) -> None:
        """Put a request into the queue. One that was there before gets its old place back."""
        self._waiting[one.arrival] = one

    def remove(self, one: W) -> None:
        """Take a request out, wherever it is."""
        del self._waiting[one.arrival]

    def first(self, running: Running) -> W:
        """Return the request to start next. Raises ValueError if the queue is empty."""
        return min(self._waiting.values(), key=_queue_order(running))

    def first_of(self, running: Running, may: Callable[[W], bool]) -> W | None:
        """Return the request to start next of those that `may` allows; None if there is none."""
        return min(filter(may, self._waiting.values()), key=_queue_order(running), default=None)

    def in_order(self, running: Running) -> Iterator[W]:
        """Yield all requests, in the order in which they would start if no request came or ended."""
        of_client: Counter[str] = Counter()
        within: list[tuple[int, int, int, W]] = []
        for one in sorted(self._waiting.values(), key=lambda one: (-one.priority, one.arrival)):
            ahead = running.of(one.client)[1] + of_client[one.client]
            within.append((-one.priority, ahead, one.arrival, one))
            of_client[one.client] += 1
        of_group: Counter[str] = Counter()
        keyed: list[tuple[QueueOrder, W]] = []
        for priority, ahead, arrival, one in sorted(within, key=lambda entry: entry[:3]):
            group = _group(one.client)
            before = running.of(one.client)[0] + of_group[group]
            keyed.append(((priority, before, ahead, arrival), one))
            of_group[group] += 1
        yield from (one for _, one in sorted(keyed, key=lambda entry: entry[0]))


def _queue_order(running: Running) -> Callable[[Waiting], QueueOrder]:
    return lambda one: (-one.priority, *running.of(one.client), one.arrival)


def _group(client: str) -> str:
    return client.partition(GROUP_SEPARATOR)[0]
