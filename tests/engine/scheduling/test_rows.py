"""What translations take of a step's budget: the rows that are computed for them, those of sources among them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import PagePool
from engine.scheduling.scheduler import ScheduledRequest, Scheduler
from engine.step_layout import Source


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
    """What fills up a source's page does not count, and nobody starves."""
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
    assert rows == sum(map(sum, translations))
