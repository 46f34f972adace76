"""Who waits is served fairly: prompts by what was done for each client, replies by what runs of each."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.fair_queue import FairQueue, Running, WaitingQueue
from engine.messages import GROUP_SEPARATOR


def served(queue: FairQueue[str, None], times: int = 99) -> list[str]:
    return [queue.pop()[0] for _ in range(min(times, len(queue)))]


def add(queue: FairQueue[str, None], *names: str, client: str | None = None, cost: int = 1) -> None:
    for name in names:
        queue.add(name, None, client=name[0] if client is None else client, cost=cost)


def test_clients_take_turns_by_priority_and_what_was_done_for_each() -> None:
    queue: FairQueue[str, None] = FairQueue()
    add(queue, "a1", "a2", "a3", "b1", "b2", "c1")
    queue.add("urgent", None, client="a", priority=1)
    queue.remove("b2")
    assert queue.remove("b2") is None
    assert served(queue) == ["urgent", "b1", "c1", "a1", "a2", "a3"]


def test_a_short_piece_does_not_wait_for_a_long_one_of_each_of_the_others() -> None:
    queue: FairQueue[str, None] = FairQueue()
    add(queue, *(f"{name}{number}" for number in (1, 2) for name in "abcdefgh"), cost=1000)
    assert served(queue, 3) == ["a1", "b1", "c1"]
    add(queue, "x1")
    assert served(queue, 2) == ["x1", "d1"]


@pytest.mark.parametrize("again", [False, True])
def test_a_long_piece_is_not_passed_by_for_ever(*, again: bool) -> None:
    """Although somebody new comes with a short one each time.

    `again`: requests that wait for images are put in again whenever one was looked at, since it may be theirs, too.
    """
    queue: FairQueue[str, None] = FairQueue()
    for number in range(2 * 1000):
        if again or not number:
            add(queue, "long", cost=1000)
        add(queue, f"{number}", client=f"newcomer-{number}")
        if served(queue, 1) == ["long"]:
            return
    raise AssertionError("It was passed by two thousand times.")


def test_many_names_of_one_group_are_no_more_than_one() -> None:
    queue: FairQueue[str, None] = FairQueue()
    for number in range(9):
        add(queue, f"x{number}", client=f"home{GROUP_SEPARATOR}{number}")
    add(queue, "y0", client=f"work{GROUP_SEPARATOR}1")
    assert served(queue, 2) == ["x0", "y0"]


def test_who_waited_for_nothing_saved_nothing_up() -> None:
    queue: FairQueue[str, None] = FairQueue()
    for _ in range(100):
        add(queue, "a1")
        served(queue)
    add(queue, "a1", "a2", "b1", "b2")
    assert served(queue) == ["a1", "b1", "a2", "b2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=1, max_size=60))
def test_nobody_who_waits_is_behind_by_more_than_one_piece_of_work(
    jobs: list[tuple[str, int]],
) -> None:
    queue: FairQueue[int, tuple[str, int]] = FairQueue()
    for number, (client, cost) in enumerate(jobs):
        queue.add(number, (client, cost), client=client, cost=cost)
    done = dict.fromkeys("abc", 0)
    left = [client for client, _ in jobs]
    most = max(cost for _, cost in jobs)
    while len(queue):
        _, (client, cost) = queue.pop()
        left.remove(client)
        done[client] += cost
        waiting = [done[one] for one in set(left)]
        assert all(done[client] - one <= most for one in waiting)


class One(NamedTuple):
    client: str
    priority: int
    arrival: int


def queue_of(*ones: tuple[str, int]) -> WaitingQueue[One]:
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


G = f"g{GROUP_SEPARATOR}"


@pytest.mark.parametrize(
    ("waiting", "running", "expected"),
    [
        ([("a", 0), ("b", 0), ("c", 0)], {}, [0, 1, 2]),
        ([("a", 0), ("b", 5), ("c", 1)], {}, [1, 2, 0]),
        ([("a", 0), ("a", 0), ("a", 0), ("b", 0)], {}, [0, 3, 1, 2]),
        ([("a", 0), ("b", 0)], {"a": 1}, [1, 0]),
        ([*[(f"{G}{name}", 0) for name in "abcd"], ("other", 0)], {}, [0, 4, 1, 2, 3]),
        ([(f"{G}a", 0), (f"{G}a", 0), (f"{G}b", 0)], {}, [0, 2, 1]),
    ],
    ids=[
        "first come",
        "priority",
        "a crowd of one client",
        "one that runs",
        "names of one group",
        "within a group",
    ],
)
def test_the_next_is_of_the_group_and_client_with_the_fewest(
    waiting: list[tuple[str, int]], running: dict[str, int], expected: list[int]
) -> None:
    assert order(queue_of(*waiting), running) == expected


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
    waiting, running, started = queue_of(*ones), counted(ran), list[int]()
    reported = order(waiting, ran)
    while waiting:
        one = waiting.first(running)
        assert one in waiting
        waiting.remove(one)
        running.add(one.client)
        started.append(one.arrival)
    assert started == reported
