"""The scheduler without a model: who runs, in which slot, how many tokens of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler import Plan, Scheduler, Sequence


def step(scheduler: Scheduler, budget: int = 100) -> Plan:
    plan = scheduler.schedule(budget)
    scheduler.complete(plan)
    return plan


def waiting(scheduler: Scheduler, *lengths: int) -> list[Sequence]:
    sequences = [Sequence(str(n), length) for n, length in enumerate(lengths)]
    for sequence in sequences:
        scheduler.add(sequence)
    return sequences


def ran(plan: Plan) -> list[tuple[str, int, int]]:
    return [(part.sequence.request_id, part.start, part.count) for part in plan.segments]


def test_an_empty_scheduler_plans_nothing() -> None:
    assert Scheduler(2).schedule(100) == Plan()


def test_a_prompt_that_fits_runs_whole_and_samples() -> None:
    scheduler = Scheduler(2)
    waiting(scheduler, 7)
    plan = step(scheduler)
    assert ran(plan) == [("0", 0, 7)]
    assert plan.segments[0].samples
    assert ran(step(scheduler)) == [("0", 7, 1)]


def test_a_long_prompt_runs_in_chunks_and_samples_after_the_last() -> None:
    scheduler = Scheduler(2)
    waiting(scheduler, 25)
    plans = [step(scheduler, 10) for _ in range(4)]
    assert [ran(plan) for plan in plans] == [[("0", 0, 10)], [("0", 10, 10)], [("0", 20, 5)], [("0", 25, 1)]]
    assert [plan.segments[0].samples for plan in plans] == [False, False, True, True]
    assert [len(plan.started) for plan in plans] == [1, 0, 0, 0]


def test_running_replies_go_first_and_prompts_share_what_the_budget_leaves() -> None:
    scheduler = Scheduler(4)
    waiting(scheduler, 4)
    step(scheduler)
    for sequence in (Sequence("a", 6), Sequence("b", 6), Sequence("c", 6)):
        scheduler.add(sequence)
    plan = step(scheduler, 10)
    assert ran(plan) == [("0", 4, 1), ("a", 0, 6), ("b", 0, 4)]
    assert plan.prefill_tokens == 10
    assert [s.request_id for s in plan.started] == ["a", "b"]


def test_the_lowest_free_slot_is_taken_first() -> None:
    scheduler = Scheduler(3)
    first, second, third = waiting(scheduler, 2, 2, 2)
    step(scheduler)
    assert [first.slot, second.slot, third.slot] == [0, 1, 2]
    scheduler.remove(third)
    scheduler.remove(first)
    fourth = Sequence("3", 2)
    scheduler.add(fourth)
    step(scheduler)
    assert fourth.slot == 0


def test_steps_are_counted_for_those_that_run() -> None:
    scheduler = Scheduler(1)
    first, second = waiting(scheduler, 2, 2)
    step(scheduler)
    step(scheduler)
    assert (first.steps, second.steps) == (2, 0)


def test_a_sequence_that_leaves_between_plan_and_completion_is_passed_over() -> None:
    scheduler = Scheduler(1)
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
    scheduler, alive, made = Scheduler(3), [], 0
    for action, number in actions:
        if action == "add":
            alive.append(Sequence(str(made), number))
            scheduler.add(alive[-1])
            made += 1
        elif action == "remove" and alive:
            scheduler.remove(alive.pop(number % len(alive)))
        elif action == "step":
            before = {s.request_id: s.computed for s in alive}
            plan = step(scheduler, number)
            assert plan.prefill_tokens <= number
            for part in plan.segments:
                assert part.start == before[part.sequence.request_id]
                assert part.sequence.computed == part.start + part.count
            slots = [part.slot for part in plan.segments]
            assert len(set(slots)) == len(slots)
            assert [p.slot for p in plan.decodes] == sorted(p.slot for p in plan.decodes)
        held = [s.slot for s in alive if s.slot is not None]
        assert len(set(held)) == len(held) == scheduler.running
        assert scheduler.free + scheduler.running == 3
        assert scheduler.running + scheduler.queued == len(alive)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 20))
def test_every_prompt_is_computed_exactly_once_and_nobody_starves(lengths: list[int], budget: int) -> None:
    scheduler = Scheduler(2)
    left = waiting(scheduler, *lengths)
    computed = dict.fromkeys((s.request_id for s in left), 0)
    for _ in range(sum(lengths) + len(lengths)):
        for part in step(scheduler, budget).prefills:
            computed[part.sequence.request_id] += part.count
            if part.sequence.prefilled:
                scheduler.remove(part.sequence)
    assert list(computed.values()) == lengths
