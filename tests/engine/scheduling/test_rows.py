"""What translations take of a step's budget: the rows that are computed for them, sources and drafts among them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.kv_cache import PagePool
from engine.scheduling.scheduler import ScheduledRequest, Scheduler
from engine.step_layout import Source


def translation(name: str, source: int, prompt: int, draft: int) -> ScheduledRequest:
    """A request in pages of eight tokens. Tokens are its own."""
    own = Source.of(source, 8) if source else None
    tokens = (own.reserved if own else 0) + prompt
    return ScheduledRequest(
        name, [hash((name, place)) for place in range(tokens)], source=own, draft=[9] * draft
    )


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12), st.integers(0, 30)), min_size=1, max_size=8),
    st.integers(1, 40),
)
def test_a_step_has_one_source_or_draft_beyond_its_budget_at_most(
    translations: list[tuple[int, int, int]], budget: int
) -> None:
    """Drafts count, what fills up a source's page does not, and nobody starves."""
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


def test_the_drafts_of_many_translations_make_no_step_long() -> None:
    scheduler = Scheduler(32, PagePool(2000, 8))
    for number in range(32):
        scheduler.add(translation(f"{number}", 0, 2, draft=64))
    assert scheduler.schedule(256).prefill_tokens <= 256
