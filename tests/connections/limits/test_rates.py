"""What one may send, and what many names of one address may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.limits.bounds import BURST_S, GROUPS_TIMES
from sessions.limits.rates import FrameCost, LocalRateLimits, RateLimited
from sessions.limits.shares import Subject


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def admitted(
    rates: LocalRateLimits, subject: Subject, *, tries: int, counts: FrameCost = FrameCost.MESSAGE
) -> int:
    """How many of so many tries in one moment are let in."""
    many = 0
    for _ in range(tries):
        try:
            rates.take(counts, subject)
        except RateLimited:
            continue
        many += 1
    return many


def test_a_burst_then_so_many_a_second() -> None:
    clock = Clock()
    rates = LocalRateLimits(messages=10, reads=50, clock=clock)
    ann = Subject("ann")
    assert admitted(rates, ann, tries=500) == 10 * BURST_S
    assert admitted(rates, ann, tries=1000, counts=FrameCost.READ) == 50 * BURST_S
    assert admitted(rates, ann, tries=9, counts=FrameCost.NOTHING) == 9
    clock.now += 1
    assert admitted(rates, ann, tries=500) == 10


def test_many_names_of_one_address_share_what_that_may_send() -> None:
    rates = LocalRateLimits(messages=10, reads=50, clock=Clock())
    crowd = sum(admitted(rates, Subject(f"name{number}", "here"), tries=50) for number in range(100))
    assert crowd == 10 * BURST_S * GROUPS_TIMES
    assert admitted(rates, Subject("other", "there"), tries=50) == 50


def test_a_crowd_that_has_left_is_forgotten_though_nobody_sends() -> None:
    clock = Clock()
    rates = LocalRateLimits(messages=10, reads=50, clock=clock)
    for number in range(1000):
        admitted(rates, Subject(f"name{number}", f"group{number % 3}"), tries=1)
    rates.forget()
    assert len(rates) == 1003
    clock.now += BURST_S
    rates.forget()
    assert len(rates) == 0


def test_who_is_refused_is_told_when_there_is_room_again() -> None:
    clock = Clock()
    rates = LocalRateLimits(messages=0.5, reads=1, clock=clock)
    admitted(rates, Subject("ann"), tries=9)
    with pytest.raises(RateLimited) as refused:
        rates.take(FrameCost.MESSAGE, Subject("ann"))
    assert refused.value.retry_after_ms is not None
    clock.now += refused.value.retry_after_ms / 1000
    rates.take(FrameCost.MESSAGE, Subject("ann"))


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["", "g", "h"]), st.floats(0, 3)), max_size=200
    )
)
def test_in_any_time_no_more_than_the_burst_and_the_rate_and_no_name_is_kept_for_ever(
    sends: list[tuple[str, str, float]],
) -> None:
    clock = Clock()
    rates = LocalRateLimits(messages=2, reads=2, clock=clock)
    started, let_in = clock.now, 0
    for owner, group, pause in sends:
        clock.now += pause
        many = admitted(rates, Subject(owner, group), tries=3)
        let_in += many if owner == "a" else 0
    assert let_in <= 2 * BURST_S + 2 * (clock.now - started) + 1e-6
    clock.now += 100
    rates.take(FrameCost.MESSAGE, Subject("z"))
    assert len(rates) <= 1 + 2  # its own, and a group's bucket that nobody has looked at since


def test_what_weighs_more_than_a_burst_takes_all_of_it_and_comes_again() -> None:
    """A try that is refused costs nothing."""
    clock = Clock()
    rates = LocalRateLimits(messages=1, reads=0.5, clock=clock)
    ann = Subject("ann", "here")
    rates.take(FrameCost.READ, ann, 10)
    for _ in range(3):
        with pytest.raises(RateLimited) as refused:
            rates.take(FrameCost.READ, ann, 10)
    assert refused.value.retry_after_ms == 5000
    clock.now += 5
    rates.take(FrameCost.READ, ann, 10)


def test_what_was_sent_counts_as_much_at_another_rate() -> None:
    clock = Clock()
    rates = LocalRateLimits(messages=0.01, reads=1, clock=clock)
    ann = Subject("ann")
    assert admitted(rates, ann, tries=5) == 1
    rates.change(messages=1, reads=1)
    assert admitted(rates, ann, tries=9) == 1 * BURST_S - 1
