"""Steps are computed with the number of threads that turned out to be the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from engine.execution.executor import LONGEST_PAUSE, SHORTEST_PAUSE, ComputeThreads


def steps(threads: ComputeThreads, count: int, tokens: int, takes: Callable[[int], float]) -> Counter[int]:
    chosen: Counter[int] = Counter()
    for _ in range(count):
        number = threads.choose(tokens)
        chosen[number] += 1
        threads.observe(takes(number))
    return chosen


def test_one_thread_is_found_where_waiting_for_each_other_costs_more_than_it_gains() -> None:
    threads = ComputeThreads(8)
    steps(threads, 20, 1, float)
    assert steps(threads, 100, 1, float)[1] >= 95


def test_all_threads_are_found_where_they_help_and_each_size_learns_by_itself() -> None:
    threads = ComputeThreads(8)
    steps(threads, 20, 1, float)
    steps(threads, 20, 32, lambda number: 1 / number)
    assert steps(threads, 50, 32, lambda number: 1 / number) == {8: 50}
    assert threads.choose(1) == 1


def test_others_are_tried_now_and_then_and_ever_less_often() -> None:
    threads = ComputeThreads(2)
    steps(threads, 10, 1, float)
    assert 1 <= steps(threads, 2 * SHORTEST_PAUSE, 1, float)[2] <= 8
    steps(threads, 10 * LONGEST_PAUSE, 1, float)
    assert steps(threads, LONGEST_PAUSE, 1, float)[2] <= 1


def test_a_change_of_the_machine_is_found_out() -> None:
    threads = ComputeThreads(2)
    steps(threads, 100, 1, float)
    steps(threads, 3 * LONGEST_PAUSE, 1, lambda number: 3 / number)
    assert threads.choose(1) == 2


def test_a_moment_s_noise_costs_few_steps() -> None:
    threads = ComputeThreads(2)
    steps(threads, 100, 1, lambda number: 3 / (number + 1))
    steps(threads, 10, 1, lambda number: 3.0 if number == 2 else 1.5)
    assert steps(threads, 1, 1, lambda _: 1.5) == {1: 1}
    assert steps(threads, 100, 1, lambda number: 3 / (number + 1))[1] < 20


def test_where_there_is_one_core_there_is_no_choice() -> None:
    assert steps(ComputeThreads(1), 500, 4, float) == {1: 500}


def test_what_was_not_chosen_for_is_not_learned_from() -> None:
    threads = ComputeThreads(2)
    threads.observe(1.0)
    assert threads.choose(1) == 2


def test_what_is_far_from_the_best_is_never_tried() -> None:
    assert set(steps(ComputeThreads(16), 20_000, 1, lambda number: 1 / number)) == {16, 8}
