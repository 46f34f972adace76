"""Orders requests that wait for a slot: by priority, then fairly between groups, then between their clients. Pure.

Requests of one client start in the order in which they came. A client is named `GROUP` + `GROUP_SEPARATOR` + its own name, or only
by its name. Groups come first, so that somebody with a thousand names at one address does not get ahead of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from engine.messages import GROUP_SEPARATOR


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
QueueOrder = tuple[int, int, int, int]


class Running:
    """Counts the running requests of each group and of each client."""

    def __init__(self) -> None:
        self._groups: Counter[str] = Counter()
        self._clients: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._clients.total()

    def of(self, client: str) -> tuple[int, int]:
        """Return how many requests of a client's group run, and how many of its own."""
        return self._groups[_group(client)], self._clients[client]

    def add(self, client: str) -> None:
        """Count one more."""
        self._groups[_group(client)] += 1
        self._clients[client] += 1

    def remove(self, client: str) -> None:
        """Count one less. A group or client that runs nothing is forgotten."""
        for counts, name in ((self._groups, _group(client)), (self._clients, client)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]


class WaitingQueue(Generic[W]):
    """Decides who is next when there is room: the group with the fewest running requests, and in it such a client."""

    def __init__(self) -> None:
        self._waiting: dict[int, W] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, one: W) -> bool:
        return one.arrival in self._waiting

    def add(self, one: W) -> None:
        """Put a request into the queue. One that was there before gets its old place."""
        self._waiting[one.arrival] = one

    def remove(self, one: W) -> None:
        """Take a request out, wherever it is."""
        del self._waiting[one.arrival]

    def first(self, running: Running) -> W:
        """Return the request to start next. Raises ValueError if the queue is empty."""
        return min(self._waiting.values(), key=_queue_order(running))

    def first_of(self, running: Running, may: Callable[[W], bool]) -> W | None:
        """Return the request to start next of those that may; None if none may."""
        return min(filter(may, self._waiting.values()), key=_queue_order(running), default=None)

    def in_order(self, running: Running) -> Iterator[W]:
        """Yield all requests, in the order in which they would start if nobody else came or went."""
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
