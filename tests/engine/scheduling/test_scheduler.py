"""The scheduler without a model: who runs, in which slot, how many tokens of it, and how large prefill chunks become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import PagePool
from engine.scheduling.scheduler import (
    ALONE,
    FIRST_BUDGET,
    FULL_ROWS,
    HEADROOM,
    LEAST_SHARE,
    ROWS,
    SMALLEST_BUDGET,
    PrefillBudget,
    ScheduledRequest,
    Scheduler,
    StepPlan,
)
from engine.step_layout import LARGEST_PREFILL, Source

ROOM = 10_000


def make_scheduler(slots: int, tokens: int = ROOM, page: int = 1) -> Scheduler:
    return Scheduler(slots, PagePool(tokens // page, page))


def make_request(name: str, length: int, **how: str | int) -> ScheduledRequest:
    """A request whose tokens are its own."""
    return ScheduledRequest(name, [hash((name, place)) for place in range(length)], **how)  # type: ignore[arg-type]


def draw(plan: StepPlan) -> None:
    """Let every reply that may have its next token."""
    for part in plan.segments:
        if part.samples:
            part.request.valid = part.request.computed
            part.request.tokens.append(7)


def step(scheduler: Scheduler, budget: int = 100) -> StepPlan:
    plan = scheduler.schedule(budget)
    scheduler.complete(plan)
    draw(plan)
    return plan


def waiting(scheduler: Scheduler, *lengths: int) -> list[ScheduledRequest]:
    requests = [make_request(str(n), length) for n, length in enumerate(lengths)]
    for request in requests:
        scheduler.add(request)
    return requests


def ran(plan: StepPlan) -> list[tuple[str, int, int]]:
    return [(part.request.request_id, part.start, part.count) for part in plan.segments]


def test_a_long_prompt_runs_in_chunks_and_samples_after_the_last() -> None:
    scheduler = make_scheduler(2)
    waiting(scheduler, 25)
    plans = [step(scheduler, 10) for _ in range(4)]
    assert [ran(plan) for plan in plans] == [[("0", 0, 10)], [("0", 10, 10)], [("0", 20, 5)], [("0", 25, 1)]]
    assert [plan.segments[0].samples for plan in plans] == [False, False, True, True]
    assert [len(plan.admitted) for plan in plans] == [1, 0, 0, 0]


def test_running_replies_go_first_and_prompts_share_what_the_budget_leaves() -> None:
    scheduler = make_scheduler(4)
    waiting(scheduler, 4)
    step(scheduler)
    for request in (make_request("a", 6), make_request("b", 6), make_request("c", 6)):
        scheduler.add(request)
    plan = step(scheduler, 10)
    assert ran(plan) == [("0", 4, 1), ("a", 0, 5), ("b", 0, 5)]
    assert plan.prefill_tokens == 10
    assert [a.request_id for a in plan.admitted] == ["a", "b", "c"]


def test_the_lowest_free_slot_is_taken_first() -> None:
    scheduler = make_scheduler(3)
    first, second, third = waiting(scheduler, 2, 2, 2)
    step(scheduler)
    assert [first.slot, second.slot, third.slot] == [0, 1, 2]
    scheduler.remove(third, keep=False)
    scheduler.remove(first)
    fourth = make_request("3", 2)
    scheduler.add(fourth)
    step(scheduler)
    assert fourth.slot == 0


def test_a_request_that_leaves_between_plan_and_completion_is_passed_over() -> None:
    scheduler = make_scheduler(1)
    (first,) = waiting(scheduler, 2)
    plan = scheduler.schedule(10)
    scheduler.remove(first)
    scheduler.complete(plan)
    assert (scheduler.running, scheduler.free) == (0, 1)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, 30)),
            st.tuples(st.just("step"), st.integers(1, 12)),
            st.tuples(st.just("remove"), st.integers(0, 30)),
        ),
        max_size=60,
    )
)
def test_slots_are_conserved_prompts_run_in_order_and_budgets_hold(actions: list[tuple[str, int]]) -> None:
    scheduler, alive, count = make_scheduler(3), [], 0
    for action, number in actions:
        if action == "add":
            alive.append(make_request(str(count), number))
            scheduler.add(alive[-1])
            count += 1
        elif action == "remove" and alive:
            scheduler.remove(alive.pop(number % len(alive)))
        elif action == "step":
            before = {s.request_id: s.computed for s in alive}
            plan = step(scheduler, number)
            assert plan.prefill_tokens <= number
            for part in plan.segments:
                assert part.start == before[part.request.request_id]
                assert part.request.computed == part.start + part.count
            slots = [part.slot for part in plan.segments]
            assert len(set(slots)) == len(slots)
            assert [p.slot for p in plan.decodes] == sorted(p.slot for p in plan.decodes)
        held = [s.slot for s in alive if s.slot is not None]
        assert len(set(held)) == len(held) == scheduler.running
        assert scheduler.free + scheduler.running == 3
        assert scheduler.running + scheduler.queued == len(alive)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 20))
def test_every_prompt_is_computed_exactly_once_and_nobody_starves(lengths: list[int], budget: int) -> None:
    scheduler = make_scheduler(2)
    left = waiting(scheduler, *lengths)
    computed = dict.fromkeys((s.request_id for s in left), 0)
    for _ in range(sum(lengths) + len(lengths)):
        for part in step(scheduler, budget).prefills:
            computed[part.request.request_id] += part.count
            if part.samples:
                scheduler.remove(part.request, keep=False)
    assert list(computed.values()) == lengths


def test_half_of_the_budget_is_the_oldest_prompts_and_short_ones_pass_by_the_other_half() -> None:
    scheduler = make_scheduler(3)
    waiting(scheduler, 50)
    step(scheduler, 10)
    scheduler.add(make_request("short", 4))
    assert ran(step(scheduler, 10)) == [("0", 10, 6), ("short", 0, 4)]


def test_a_beginning_that_everyone_shares_is_known_after_its_first_token_and_held_once() -> None:
    scheduler = make_scheduler(3, page=8)
    system = list(range(1000, 1040))
    a, b = (ScheduledRequest(name, [*system, ord(name)], salt=name, shared_tokens=40) for name in "ab")
    scheduler.add(a)
    plan = step(scheduler)
    assert ran(plan) == [("a", 0, 41)]
    scheduler.share(a)
    scheduler.add(b)
    assert ran(step(scheduler)) == [("a", 41, 1), ("b", 40, 1)]
    assert scheduler.pool.used == 5 + 2
    assert scheduler.pool.copies == []


def test_a_client_with_a_crowd_leaves_slots_to_others() -> None:
    scheduler = make_scheduler(2)
    for name in ("a1", "a2", "b1"):
        scheduler.add(make_request(name, 4, client=name[0]))
    assert [a.request_id for a in step(scheduler).admitted] == ["a1", "b1"]
    assert [s.request_id for s in scheduler.waiting()] == ["a2"]


def test_a_request_waits_while_those_that_run_need_the_memory() -> None:
    scheduler = make_scheduler(2, tokens=60)
    first, second = waiting(scheduler, 40, 18)
    step(scheduler)
    assert (first.slot, second.slot) == (0, None)
    scheduler.remove(first, keep=False)
    step(scheduler)
    assert second.slot is not None


def test_the_newest_reply_gives_way_when_memory_is_outgrown_and_goes_on_later() -> None:
    scheduler = make_scheduler(2, tokens=2 * HEADROOM + 40)
    first, second = waiting(scheduler, 20, 20)
    while second.slot is not None or not second.started:
        step(scheduler)
    assert scheduler.preemptions == 1
    written = len(second.tokens)
    assert list(scheduler.waiting()) == []
    step(scheduler)
    assert second.slot is None
    scheduler.remove(first, keep=False)
    plan = step(scheduler)
    (part,) = plan.segments
    assert 16 < part.start == written - part.count, "what is left of its pages is not computed again"
    assert part.samples


def test_after_the_device_ran_out_of_memory_fewer_run_until_one_has_ended() -> None:
    scheduler = make_scheduler(2)
    first, second = waiting(scheduler, 20, 20)
    step(scheduler)
    assert scheduler.make_memory()
    assert ran(step(scheduler)) == [("0", 20, 1)]
    assert not scheduler.make_memory()
    scheduler.remove(first)
    step(scheduler)
    assert second.slot is not None


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), min_size=1, max_size=8), st.integers(1, 30),
    st.sampled_from((1, 5, 20, 100)),
)  # fmt: skip
def test_with_little_memory_every_reply_is_made_to_its_end(
    wanted: list[tuple[int, int]], budget: int, page: int
) -> None:
    scheduler = make_scheduler(3, tokens=100, page=page)
    open_ones = {str(n): (make_request(str(n), length), count) for n, (length, count) in enumerate(wanted)}
    for request, _ in open_ones.values():
        scheduler.add(request)
    for _ in range(20_000):
        step(scheduler, budget)
        pool = scheduler.pool
        held = {page for one, _ in open_ones.values() for page in one.table.pages}
        assert pool.used == len(held)
        assert pool.free + pool.used + pool.cached == pool.total
        for name, (request, count) in list(open_ones.items()):
            if request.generated >= count:
                scheduler.remove(request)
                del open_ones[name]
        if not open_ones:
            break
    assert not open_ones
    scheduler.pool.check_idle()


def test_requests_whose_images_are_looked_at_hold_half_of_the_slots_at_most() -> None:
    """The next one of them begins when another was looked at; texts pass it, and so does an image that is known."""
    scheduler = make_scheduler(4)
    seeing = [make_request(str(n), 20, images_end=20) for n in range(3)]
    plain = make_request("plain", 20)
    for one in (*seeing, plain):
        scheduler.add(one)
    assert step(scheduler).admitted == (*seeing[:2], plain)
    assert step(scheduler).admitted == ()
    again = ScheduledRequest("again", [*plain.tokens[:20], 7, 8], images_end=20)
    scheduler.remove(plain)
    scheduler.remove(seeing[2])
    scheduler.add(again)
    assert step(scheduler).admitted == (again,)
    late = make_request("late", 20, images_end=20)
    scheduler.add(late)
    assert step(scheduler).admitted == ()
    seeing[0].waits_for_images = False
    assert step(scheduler).admitted == (late,)


def translation(name: str, source: int, prompt: int) -> ScheduledRequest:
    """A request in pages of eight tokens. Tokens are its own."""
    own = Source.of(source, 8) if source else None
    tokens = (own.reserved if own else 0) + prompt
    return ScheduledRequest(name, [hash((name, place)) for place in range(tokens)], source=own)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), min_size=1, max_size=8),
    st.integers(1, 40),
)
def test_a_step_has_one_source_beyond_its_budget_at_most(
    translations: list[tuple[int, int]], budget: int
) -> None:
    """A source takes whole pages, and nobody starves."""
    scheduler = Scheduler(4, PagePool(2000, 8))
    for number, shape in enumerate(translations):
        scheduler.add(translation(f"{number}", *shape))
    rows = 0
    while scheduler.running + scheduler.queued:
        plan = scheduler.schedule(budget)
        oldest = min(plan.prefills, key=lambda part: part.request.arrival)
        assert plan.prefill_tokens <= max(budget, oldest.request.least)
        rows += plan.prefill_tokens
        scheduler.complete(plan)
        for part in plan.prefills:
            if part.samples:
                scheduler.remove(part.request, keep=False)
    assert rows == sum(-(-source // 8) * 8 + prompt for source, prompt in translations)


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
        (1e-9, 0.0, LARGEST_PREFILL, LARGEST_PREFILL),
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


@given(machines, st.floats(1e-3, 0.4))
def test_what_running_replies_take_is_learned_beside_prompts_alone(
    machine: tuple[float, float], later_s: float
) -> None:
    """Replies join and leave, and no step without a prompt comes."""
    decode_s, seconds_per_token = machine
    pace = warmed_up(seconds_per_token, decode_s=decode_s)
    mixed(pace, decode_s=later_s, seconds_per_token=seconds_per_token, steps=60)
    least_s = LEAST_SHARE * pace.target_s
    ideal = min(max(pace.target_s - later_s, least_s) / seconds_per_token, LARGEST_PREFILL)
    assert pace.budget >= max(SMALLEST_BUDGET, int(0.1 * ideal))
    assert pace.budget <= max(SMALLEST_BUDGET, 2 * ideal)


@given(st.lists(st.tuples(st.integers(0, 5000), st.booleans(), st.floats(0.0, 1e6))))
def test_a_budget_is_within_its_bounds_after_any_steps(steps: list[tuple[int, bool, float]]) -> None:
    pace = PrefillBudget(target_s=0.1)
    for tokens, decoding, seconds in steps:
        pace.observe(prefill_tokens=tokens, decoding=decoding, seconds=seconds)
        assert SMALLEST_BUDGET <= pace.budget <= LARGEST_PREFILL


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
