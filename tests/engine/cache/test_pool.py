"""Memory is given to those that run, and what is left keeps the states that were used last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cache.pool import EVERYONE, KVPool


def run(length: int, first: int = 0) -> list[int]:
    return list(range(first, first + length))


def test_a_kept_state_is_found_by_what_begins_like_it() -> None:
    pool = KVPool(100)
    state = pool.park("a", run(40))
    match = pool.find("a", [*run(30), 99, 98])
    assert match == (state, 30)
    assert pool.find("b", run(40)) is None


def test_the_last_token_of_a_prompt_is_always_left_to_compute() -> None:
    pool = KVPool(100)
    pool.park("a", run(40))
    match = pool.find("a", run(40))
    assert match is not None
    assert match.tokens == 39


def test_what_everyone_shares_is_found_by_everyone_where_it_is_longer() -> None:
    pool = KVPool(200)
    own, shared = pool.park("a", run(20)), pool.park(EVERYONE, run(30))
    assert pool.find("a", run(50), shared=30) == (shared, 30)
    assert pool.find("b", run(50), shared=30) == (shared, 30)
    pool.park("a", run(40))
    assert own in pool.take_dropped()
    match = pool.find("a", run(50), shared=30)
    assert match is not None
    assert match.tokens == 40


def test_what_everyone_shares_is_not_found_by_who_only_guesses_it() -> None:
    pool = KVPool(200)
    pool.park(EVERYONE, run(30))
    assert pool.find("a", run(50)) is None


def test_a_state_gives_way_to_one_that_goes_on_from_it() -> None:
    pool = KVPool(100)
    first = pool.park("a", run(20))
    pool.park("a", run(50))
    assert pool.take_dropped() == [first]
    assert (pool.states, pool.parked, pool.free) == (1, 50, 50)


def test_what_is_known_or_too_short_or_too_large_is_not_kept() -> None:
    pool = KVPool(100, parked=60)
    assert pool.park("a", run(40)) is not None
    assert pool.park("a", run(40)) is None
    assert pool.park("a", run(30)) is None
    assert pool.park("a", run(5, 500)) is None
    assert pool.park("a", run(61, 500)) is None
    assert (pool.states, pool.parked) == (1, 40)


def test_states_give_way_to_replies_the_one_unused_for_longest_first() -> None:
    pool = KVPool(100)
    first, second, third = (pool.park("a", run(30, 1000 * n)) for n in range(3))
    pool.find("a", run(30))
    assert pool.reserve(40, beside=third)
    assert pool.take_dropped() == [second]
    assert pool.reserve(30, beside=third)
    assert pool.take_dropped() == [first]
    assert not pool.reserve(1, beside=third)
    assert pool.reserve(1)


def test_states_among_themselves_have_a_limit_of_their_own() -> None:
    pool = KVPool(100, parked=50)
    first = pool.park("a", run(30))
    pool.park("a", run(30, 1000))
    assert pool.take_dropped() == [first]


def test_most_of_a_state_goes_along_with_the_reply_that_takes_it() -> None:
    pool = KVPool(200)
    pool.park("a", run(40))
    pool.park(EVERYONE, run(40, 1000))
    most, little = pool.find("a", run(30)), pool.find("a", run(18))
    shared = pool.find("a", run(60, 1000), shared=40)
    assert most is not None and little is not None and shared is not None  # noqa: PT018
    assert pool.goes_along(most)
    assert not pool.goes_along(little)
    assert not pool.goes_along(shared)


def test_memory_held_by_nobody_is_reported() -> None:
    pool = KVPool(100)
    pool.reserve(10)
    with pytest.raises(RuntimeError, match="10 tokens used"):
        pool.check_idle()
    pool.give_back(10)
    pool.check_idle()


@given(
    st.lists(
        st.tuples(st.sampled_from(("park", "reserve", "give back", "find", "drop all")), st.integers(1, 90))
    )
)
def test_memory_is_conserved_and_no_state_is_lost_unsaid(actions: list[tuple[str, int]]) -> None:
    pool, held, kept = KVPool(100, parked=70), [], set[int]()
    for action, size in actions:
        match action:
            case "park" if (state := pool.park("a", run(size, 100 * (size % 3)))) is not None:
                kept.add(state)
            case "reserve" if pool.reserve(size):
                held.append(size)
            case "give back" if held:
                pool.give_back(held.pop(size % len(held)))
            case "find":
                pool.find("a", run(size, 100 * (size % 3)))
            case "drop all":
                pool.drop_all()
        kept -= set(pool.take_dropped())
        assert len(kept) == pool.states
        assert pool.free + pool.used + pool.parked == pool.total
        assert min(pool.free, pool.used, pool.parked) >= 0
        assert pool.used == sum(held)
        assert pool.parked <= 70
