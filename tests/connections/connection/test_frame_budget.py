"""What a connection may send: bursts pass, floods are slowed to the rate, and debts end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions.limits.bounds import RATES, REFUSED_REQUEST_FRAMES, Bound, Rate
from sessions.limits.rates import FrameBudget, FrameKind, TokenBucket

RATE = Rate(per_s=10, burst=20)
AMOUNTS = st.floats(0.1, 30)
PAUSES = st.floats(0, 10)


@given(st.lists(st.tuples(AMOUNTS, PAUSES), min_size=1))
def test_who_waits_for_the_debt_never_gets_more_than_burst_and_rate(takes: list[tuple[float, float]]) -> None:
    bucket, now, taken = TokenBucket(RATE), 0.0, 0.0
    for amount, pause in takes:
        now += pause + bucket.wait_s(now + pause)
        assert taken <= RATE.burst + RATE.per_s * now + 1e-6
        bucket.take(amount, now)
        taken += amount
    assert taken <= RATE.burst + RATE.per_s * now + max(amount for amount, _ in takes) + 1e-6


@given(st.lists(AMOUNTS, min_size=1), st.floats(-1e6, 1e6))
def test_who_stays_below_the_rate_never_waits(amounts: list[float], now: float) -> None:
    bucket = TokenBucket(RATE)
    for amount in amounts:
        assert not bucket.take(min(amount, RATE.burst - 0.01), now)
        assert bucket.wait_s(now) == 0
        now += amount / RATE.per_s + 1e-6


@given(st.lists(AMOUNTS, min_size=1))
def test_a_debt_is_repaid_when_it_said_so(amounts: list[float]) -> None:
    bucket = TokenBucket(RATE)
    in_debt = [bucket.take(amount, 0.0) for amount in amounts][-1]
    wait_s = bucket.wait_s(0.0)
    assert in_debt is (wait_s > 0)
    assert bucket.wait_s(wait_s + 1e-6) == 0


def test_sound_fits() -> None:
    """A hundred binary frames a second of a kilobyte each, for six minutes."""
    budget = FrameBudget()
    assert {budget.take(FrameKind.BINARY, 1024, number / 100) for number in range(36_000)} == {None}


@pytest.mark.parametrize(
    ("kind", "size", "bound"),
    [
        (FrameKind.TEXT, 10, Bound.TEXT_FRAMES),
        (FrameKind.TEXT, 60_000, Bound.TEXT_BYTES),
        (FrameKind.BINARY, 10, Bound.BINARY_FRAMES),
        (FrameKind.BINARY, 60_000, Bound.BINARY_BYTES),
        (FrameKind.CONTROL, 125, Bound.CONTROL_FRAMES),
    ],
)
def test_a_flood_exceeds_the_bound_of_its_kind(kind: FrameKind, size: int, bound: Bound) -> None:
    budget, cost = FrameBudget(), size if bound.value.endswith("bytes") else 1
    found = [budget.take(kind, size, 0.0) for _ in range(int(RATES[bound].burst / cost) + 1)]
    assert (set(found[:-1]), found[-1]) == ({None}, bound)
    assert 0 < budget.wait_s(0.0) <= 2 * cost / RATES[bound].per_s


def test_who_asks_on_though_it_is_refused_is_read_once_a_second() -> None:
    budget = FrameBudget()
    free = int(RATES[Bound.TEXT_FRAMES].burst / REFUSED_REQUEST_FRAMES)
    found = [budget.charge(0.0) for _ in range(free + 1)]
    assert found == [None] * free + [Bound.TEXT_FRAMES]
    assert budget.wait_s(0.0) == pytest.approx(1.0)
    budget, now = FrameBudget(), 0.0
    for _ in range(60):  # also while it sends as much as it may
        budget.take(FrameKind.TEXT, 100, now)
        budget.charge(now)
        now += budget.wait_s(now)
    assert now == pytest.approx(60, abs=5)


def test_nobody_owes_more_than_two_refused_requests() -> None:
    """Many under way may be refused in the same moment."""
    budget = FrameBudget()
    for _ in range(100):
        budget.charge(0.0)
    assert budget.wait_s(0.0) <= 2.0
