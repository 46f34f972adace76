"""Who waits is served by priority, then by fairness, then by age."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from engine.fair_queue import Running, WaitingQueue
from engine.messages import GROUP_SEPARATOR


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
    return [one.arrival for one in waiting.in_order(counted(running or {}))]


def counted(running: dict[str, int]) -> Running:
    counts = Running()
    for client, many in running.items():
        for _ in range(many):
            counts.add(client)
    return counts


def test_first_come_first_served() -> None:
    assert order(queue(("a", 0), ("b", 0), ("c", 0))) == [0, 1, 2]


def test_a_higher_priority_passes() -> None:
    assert order(queue(("a", 0), ("b", 5), ("c", 1))) == [1, 2, 0]


def test_a_client_with_many_does_not_keep_others_waiting() -> None:
    assert order(queue(("a", 0), ("a", 0), ("a", 0), ("b", 0))) == [0, 3, 1, 2]
    assert order(queue(("a", 0), ("b", 0)), {"a": 1}) == [1, 0]


def test_many_names_of_one_address_do_not_keep_another_waiting() -> None:
    crowd = [(f"crowd{GROUP_SEPARATOR}{name}", 0) for name in "abcdef"]
    assert order(queue(*crowd, (f"other{GROUP_SEPARATOR}z", 0))) == [0, 6, 1, 2, 3, 4, 5]


def test_within_a_group_clients_are_served_in_turn() -> None:
    ones = [(f"g{GROUP_SEPARATOR}a", 0), (f"g{GROUP_SEPARATOR}a", 0), (f"g{GROUP_SEPARATOR}b", 0)]
    assert order(queue(*ones)) == [0, 2, 1]


CLIENTS = [
    *"ab",
    f"g{GROUP_SEPARATOR}a",
    f"g{GROUP_SEPARATOR}b",
    f"h{GROUP_SEPARATOR}a",
    f"h{GROUP_SEPARATOR}b",
]


@given(
    st.lists(st.tuples(st.sampled_from(CLIENTS), st.integers(0, 1)), max_size=12),
    st.dictionaries(st.sampled_from(CLIENTS), st.integers(0, 3)),
)
def test_the_order_told_is_the_order_in_which_they_start(
    ones: list[tuple[str, int]], ran: dict[str, int]
) -> None:
    waiting, running, started = queue(*ones), counted(ran), list[int]()
    reported = order(waiting, ran)
    while waiting:
        one = waiting.first(running)
        assert one in waiting
        waiting.remove(one)
        running.add(one.client)
        started.append(one.arrival)
    assert started == reported
