"""How large prefill chunks become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.scheduler import (
    ALONE,
    FIRST_BUDGET,
    FULL_ROWS,
    LARGEST_BUDGET,
    LEAST_SHARE,
    ROWS,
    SMALLEST_BUDGET,
    PrefillBudget,
)


def warmed_up(seconds_per_token: float, *, decode_s: float = 0.0) -> PrefillBudget:
    """A pace that has seen many full chunks on a machine of this speed."""
    pace = PrefillBudget(target_s=0.1)
    for _ in range(40):
        pace.observe(prefill_tokens=0, decoding=True, seconds=decode_s)
        budget = pace.budget
        seconds = decode_s + budget * seconds_per_token
        pace.observe(prefill_tokens=budget, decoding=decode_s > 0, seconds=seconds)
    return pace


@pytest.mark.parametrize(
    ("token_s", "decode_s", "least", "most"),
    [
        (0.0002, 0.0, 450, 500),
        (0.0002, 0.05, 225, 250),
        (1.0, 0.0, SMALLEST_BUDGET, SMALLEST_BUDGET),
        (1e-9, 0.0, LARGEST_BUDGET, LARGEST_BUDGET),
    ],
    ids=["the time of a step", "what replies leave of it", "a slow machine", "a fast machine"],
)
def test_a_chunk_fills_the_time_that_a_step_may_take(
    token_s: float, decode_s: float, least: int, most: int
) -> None:
    assert least <= warmed_up(token_s, decode_s=decode_s).budget <= most


def test_chunks_grow_twofold_at_most() -> None:
    pace = PrefillBudget(target_s=0.1)
    pace.observe(prefill_tokens=FIRST_BUDGET, decoding=False, seconds=1e-6)
    assert pace.budget == 2 * FIRST_BUDGET


def test_a_short_prompt_says_little_about_speed() -> None:
    pace = warmed_up(0.0002)
    before = pace.budget
    pace.observe(prefill_tokens=3, decoding=False, seconds=0.01)
    assert pace.budget > 0.8 * before


def test_a_clock_that_stands_still_does_no_harm() -> None:
    pace = PrefillBudget(target_s=0.1)
    assert pace.budget == FIRST_BUDGET
    pace.observe(prefill_tokens=10, decoding=False, seconds=0.0)
    assert pace.budget == FIRST_BUDGET


def mixed(pace: PrefillBudget, *, decode_s: float, seconds_per_token: float, steps: int) -> None:
    """Steps of running replies beside a prompt that does not end."""
    for _ in range(steps):
        budget = pace.budget
        pace.observe(prefill_tokens=budget, decoding=True, seconds=decode_s + budget * seconds_per_token)


machines = st.tuples(st.floats(1e-3, 0.4), st.floats(1e-5, 1e-3))
"""What running replies take in a step, and a prompt's token."""


@pytest.mark.parametrize("prompts_share", [0, 1])
@given(machines, st.floats(1.0, 1000.0))
def test_one_slow_step_leaves_an_eighth_of_the_budget_and_costs_some_steps(
    prompts_share: int, machine: tuple[float, float], times_as_long: float
) -> None:
    """No step without a prompt ever comes again: under load none does."""
    decode_s, seconds_per_token = machine
    pace = warmed_up(seconds_per_token, decode_s=decode_s)
    before = pace.budget
    prompt = before * prompts_share
    slow_s = times_as_long * (decode_s + prompt * seconds_per_token)
    pace.observe(prefill_tokens=prompt, decoding=True, seconds=slow_s)
    assert pace.budget >= max(SMALLEST_BUDGET, before // 8)
    mixed(pace, decode_s=decode_s, seconds_per_token=seconds_per_token, steps=40)
    # Beside replies that take longer than the target, what a token takes is known to a factor.
    assert pace.budget >= (0.8 if decode_s < 0.7 * pace.target_s else 0.25) * before
    step_s = decode_s + pace.budget * seconds_per_token
    assert step_s <= 1.2 * max(pace.target_s, decode_s + before * seconds_per_token)


@given(machines)
def test_prompts_get_a_share_of_the_time_however_long_replies_alone_take(
    machine: tuple[float, float],
) -> None:
    decode_s, seconds_per_token = machine
    pace = warmed_up(seconds_per_token, decode_s=decode_s)
    least = LEAST_SHARE * pace.target_s / seconds_per_token
    # Beside long steps of the replies, what a token takes is known to a factor.
    assert pace.budget >= max(SMALLEST_BUDGET, int(0.1 * min(least, LARGEST_BUDGET)))


@given(machines, st.floats(1e-3, 0.4))
def test_what_running_replies_take_is_learned_beside_prompts_alone(
    machine: tuple[float, float], later_s: float
) -> None:
    """Replies join and leave, and no step without a prompt comes."""
    decode_s, seconds_per_token = machine
    pace = warmed_up(seconds_per_token, decode_s=decode_s)
    mixed(pace, decode_s=later_s, seconds_per_token=seconds_per_token, steps=60)
    least_s = LEAST_SHARE * pace.target_s
    ideal = min(max(pace.target_s - later_s, least_s) / seconds_per_token, LARGEST_BUDGET)
    assert pace.budget >= max(SMALLEST_BUDGET, int(0.1 * ideal))
    assert pace.budget <= max(SMALLEST_BUDGET, 2 * ideal)


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans(), st.floats(0.0, 1e6))))
def test_a_budget_is_within_its_bounds_after_any_steps(steps: list[tuple[int, bool, float]]) -> None:
    pace = PrefillBudget(target_s=0.1)
    for tokens, decoding, seconds in steps:
        pace.observe(prefill_tokens=tokens, decoding=decoding, seconds=seconds)
        assert SMALLEST_BUDGET <= pace.budget <= LARGEST_BUDGET


def step_s(tokens: int) -> float:
    """A machine whose steps take as long with one row as with 64."""
    return 0.001 * max(tokens, FULL_ROWS)


@pytest.mark.parametrize("replies", [0, 8])
def test_a_step_fills_its_rows_where_fewer_would_be_no_quicker(replies: int) -> None:
    """By time alone chunks would shrink, and each would take as long as the one before."""
    pace = PrefillBudget(target_s=0.05)
    for _ in range(40):
        tokens = pace.budget_beside(replies)
        pace.observe(prefill_tokens=tokens, decoding=replies > 0, seconds=step_s(tokens + replies))
    assert pace.budget_beside(replies) >= FULL_ROWS - replies


def test_a_machine_too_slow_for_full_rows_takes_fewer_and_tries_again() -> None:
    pace, tried = warmed_up(0.1), 0
    assert pace.budget_beside(0) == SMALLEST_BUDGET
    for _ in range(300):
        tokens = pace.budget_beside(0)
        tried += tokens >= FULL_ROWS
        pace.observe(prefill_tokens=tokens, decoding=False, seconds=0.1 * tokens)
    assert 1 <= tried <= 10


def test_a_prompt_that_keeps_nobody_waiting_has_longer_steps() -> None:
    pace = warmed_up(0.0002)
    for _ in range(5):
        tokens = pace.budget_beside(0)
        pace.observe(prefill_tokens=tokens, decoding=False, seconds=0.0002 * tokens)
    assert pace.budget_beside(0) == pytest.approx(ALONE * pace.budget, rel=0.05)
    assert pace.budget_beside(1) == pytest.approx(pace.budget, rel=0.05)


@given(st.integers(0, 200), st.floats(1e-5, 1e-2))
def test_a_step_has_rows_as_they_are_computed(replies: int, token_s: float) -> None:
    pace = warmed_up(token_s)
    budget = pace.budget_beside(replies)
    assert (replies + budget) % ROWS == 0 or replies + budget < FULL_ROWS + ROWS or budget < ROWS
    assert budget > max(SMALLEST_BUDGET, pace.budget) - ROWS
