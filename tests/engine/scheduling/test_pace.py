"""How large prefill chunks become."""

from __future__ import annotations

from engine.scheduling.pace import FIRST_BUDGET, LARGEST_BUDGET, SMALLEST_BUDGET, PrefillPace


def settled(seconds_per_token: float, *, decode_s: float = 0.0) -> PrefillPace:
    """A pace that has seen many full chunks on a machine of this speed."""
    pace = PrefillPace(target_s=0.1)
    for _ in range(40):
        pace.observe(prefill_tokens=0, decoding=True, seconds=decode_s)
        budget = pace.budget
        seconds = decode_s + budget * seconds_per_token
        pace.observe(prefill_tokens=budget, decoding=decode_s > 0, seconds=seconds)
    return pace


def test_the_first_chunk_is_modest() -> None:
    assert PrefillPace(target_s=0.1).budget == FIRST_BUDGET


def test_a_chunk_fills_the_time_that_a_step_may_take() -> None:
    assert 450 <= settled(0.0002).budget <= 500


def test_running_replies_leave_less_time_for_prompts() -> None:
    assert 225 <= settled(0.0002, decode_s=0.05).budget <= 250


def test_a_slow_machine_still_moves_on() -> None:
    assert settled(1.0).budget == SMALLEST_BUDGET


def test_a_fast_machine_has_a_limit() -> None:
    assert settled(1e-9).budget == LARGEST_BUDGET


def test_chunks_grow_twofold_at_most() -> None:
    pace = PrefillPace(target_s=0.1)
    pace.observe(prefill_tokens=FIRST_BUDGET, decoding=False, seconds=1e-6)
    assert pace.budget == 2 * FIRST_BUDGET


def test_a_short_prompt_says_little_about_speed() -> None:
    pace = settled(0.0002)
    before = pace.budget
    pace.observe(prefill_tokens=3, decoding=False, seconds=0.01)
    assert pace.budget > 0.8 * before


def test_a_clock_that_stands_still_does_no_harm() -> None:
    pace = PrefillPace(target_s=0.1)
    pace.observe(prefill_tokens=10, decoding=False, seconds=0.0)
    assert pace.budget == FIRST_BUDGET
