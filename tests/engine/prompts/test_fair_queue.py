"""Who waits for the one that makes prompts is served fairly, by what was done for each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.fair_queue import FairQueue
from engine.messages import GROUP_SEPARATOR


def served(queue: FairQueue[str, None], times: int = 99) -> list[str]:
    return [queue.pop()[0] for _ in range(min(times, len(queue)))]


def add(queue: FairQueue[str, None], *names: str, client: str | None = None, cost: int = 1) -> None:
    for name in names:
        queue.add(name, None, client=name[0] if client is None else client, cost=cost)


def test_clients_take_turns() -> None:
    queue: FairQueue[str, None] = FairQueue()
    add(queue, "a1", "a2", "a3", "b1", "b2", "c1")
    assert served(queue) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_who_had_much_done_waits_longer() -> None:
    queue: FairQueue[str, None] = FairQueue()
    add(queue, "a1", "a2", cost=1000)
    assert served(queue, 1) == ["a1"]
    add(queue, "b1", "b2", "b3")
    assert served(queue) == ["b1", "b2", "b3", "a2"]


def test_a_short_piece_does_not_wait_for_a_long_one_of_each_of_the_others() -> None:
    queue: FairQueue[str, None] = FairQueue()
    add(queue, *(f"{name}{number}" for number in (1, 2) for name in "abcdefgh"), cost=1000)
    assert served(queue, 3) == ["a1", "b1", "c1"]
    add(queue, "x1")
    assert served(queue, 2) == ["x1", "d1"]


def test_a_long_piece_is_not_passed_by_for_ever() -> None:
    """Although somebody new comes with a short one each time."""
    queue: FairQueue[str, None] = FairQueue()
    add(queue, "long", cost=1000)
    for number in range(2 * 1000):
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


def test_what_is_put_in_again_keeps_what_it_waited() -> None:
    """Requests that wait for images are put in again whenever one was looked at: it may be theirs, too."""
    queue: FairQueue[str, None] = FairQueue()
    for number in range(2 * 1000):
        add(queue, "long", cost=1000)
        add(queue, f"{number}", client=f"newcomer-{number}")
        if served(queue, 1) == ["long"]:
            return
    raise AssertionError("It was passed by two thousand times.")


def test_a_higher_priority_comes_first() -> None:
    queue: FairQueue[str, None] = FairQueue()
    queue.add("low", None, client="a")
    queue.add("high", None, client="b", priority=1)
    assert served(queue) == ["high", "low"]


def test_who_waited_for_nothing_saved_nothing_up() -> None:
    queue: FairQueue[str, None] = FairQueue()
    for _ in range(100):
        add(queue, "a1")
        served(queue)
    add(queue, "a1", "a2", "b1", "b2")
    assert served(queue) == ["a1", "b1", "a2", "b2"]


def test_what_was_taken_out_is_not_served() -> None:
    queue: FairQueue[str, int] = FairQueue()
    queue.add("a", 1)
    assert queue.remove("a") == 1
    assert queue.remove("a") is None
    assert len(queue) == 0


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
