"""Who waits is served by priority, then by fairness, then by age."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from engine.waiting_queue import WaitingQueue


class One(NamedTuple):
    client: str
    priority: int
    arrival: int


def queue(*ones: tuple[str, int]) -> WaitingQueue[One]:
    made: WaitingQueue[One] = WaitingQueue()
    for arrival, (client, priority) in enumerate(ones):
        made.add(One(client, priority, arrival))
    return made


def order(waiting: WaitingQueue[One], running: dict[str, int] | None = None) -> list[int]:
    return [one.arrival for one in waiting.in_order(running or {})]


def test_first_come_first_served() -> None:
    assert order(queue(("a", 0), ("b", 0), ("c", 0))) == [0, 1, 2]


def test_a_higher_priority_passes() -> None:
    assert order(queue(("a", 0), ("b", 5), ("c", 1))) == [1, 2, 0]


def test_a_client_with_many_does_not_keep_others_waiting() -> None:
    assert order(queue(("a", 0), ("a", 0), ("a", 0), ("b", 0))) == [0, 3, 1, 2]
    assert order(queue(("a", 0), ("b", 0)), {"a": 1}) == [1, 0]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1)), max_size=12))
def test_the_order_told_is_the_order_in_which_they_start(ones: list[tuple[str, int]]) -> None:
    waiting, running, started = queue(*ones), Counter[str](), []
    told = order(waiting)
    while waiting:
        one = waiting.first(running)
        assert one in waiting
        waiting.remove(one)
        running[one.client] += 1
        started.append(one.arrival)
    assert started == told
