"""Whatever an upstream does wrong, the client is told in one way that the protocol has for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.upstreams.misbehaving import CASES, Case, Outcome, outcome_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

AT_ONCE = 4
"""Most of a case is waiting."""

Played = dict[str, asyncio.Task[Outcome]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def played(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Played]:
    """All cases by name, each with a service of its own, some at once."""
    places = asyncio.Semaphore(AT_ONCE)

    async def play(case: Case) -> Outcome:
        async with places:
            return await outcome_of(case, tmp_path_factory.mktemp("service"))

    tasks = {case.name: asyncio.create_task(play(case), name=case.name) for case in CASES}
    yield tasks
    await asyncio.gather(*tasks.values(), return_exceptions=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_each_failure_has_its_outcome(case: Case, played: Played) -> None:
    assert await played[case.name] == case.outcome
