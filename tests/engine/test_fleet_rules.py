"""What a fleet does at each change of its engines, without a process."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from engine.api import EngineState, EngineStatus
from engine.errors import EngineUnavailable, ModelNotUsable
from engine.machine import EngineOptions
from engine.messages import EngineStatistics, Finished, FinishReason, Message, ModelFacts, Params, Request
from engine.served_models import EngineFleet, status_of

REQUEST = Request("r", (Message("user", "hello"),))
FACTS = ModelFacts("model", 4096, Params(), "cuda:0", "bfloat16", 32, 1)
OTHER_FACTS = ModelFacts("model", 2048, Params(), "cuda:1", "bfloat16", 16, 1)


@pytest.fixture
async def fleet() -> EngineFleet:
    """Two engines whose processes nobody starts."""
    return EngineFleet([EngineOptions(model="model")] * 2)


def busy(fleet: EngineFleet) -> list[int]:
    return [engine.open_requests for engine in fleet.parts]


def status(state: EngineState, progress: float = 0.0, restarts: int = 0) -> EngineStatus:
    return EngineStatus(state, state.value, progress, None, restarts)


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        (EngineState.READY, EngineState.FAILED, EngineState.READY),
        (EngineState.READY, EngineState.RESTARTING, EngineState.READY),
        (EngineState.LOADING, EngineState.FAILED, EngineState.LOADING),
        (EngineState.LOADING, EngineState.RESTARTING, EngineState.RESTARTING),
        (EngineState.FAILED, EngineState.FAILED, EngineState.FAILED),
        (EngineState.FAILED, EngineState.STOPPED, EngineState.FAILED),
        (EngineState.STOPPED, EngineState.STOPPED, EngineState.STOPPED),
    ],
)
def test_a_fleet_is_as_far_as_its_furthest_engine(
    one: EngineState, other: EngineState, together: EngineState
) -> None:
    assert status_of([status(one), status(other)]).state is together
    assert status_of([status(other), status(one)]).state is together
    reported = status_of([status(EngineState.LOADING, 0.2, 1), status(EngineState.LOADING, 0.7, 2)])
    assert (reported.progress, reported.restarts) == (0.7, 3)


async def test_a_fleet_promises_what_both_engines_can_keep(fleet: EngineFleet) -> None:
    fleet.parts[0]._life.loaded(FACTS)
    assert fleet.facts == FACTS
    fleet.parts[1]._life.loaded(OTHER_FACTS)
    facts = await fleet.ready()
    assert (facts.context_tokens, facts.max_batch, facts.device) == (2048, 48, "cuda:0, cuda:1")


async def test_a_fleet_is_ready_with_its_first_engine(fleet: EngineFleet) -> None:
    waiting = asyncio.create_task(fleet.ready())
    with pytest.raises(EngineUnavailable, match="No engine is ready yet: starting"):
        await fleet.ready(timeout_s=0.001)
    fleet.parts[0]._life.failed("It crashed too often.")
    fleet.parts[1]._life.loaded(FACTS)
    assert await waiting == FACTS


async def test_a_model_that_no_engine_can_serve_is_told(fleet: EngineFleet) -> None:
    fleet.parts[0]._life.not_usable("It has no chat template.")
    fleet.parts[1]._life.not_usable("It has no chat template.")
    with pytest.raises(ModelNotUsable, match="chat template"):
        await fleet.ready()
    with pytest.raises(EngineUnavailable, match="chat template"):
        fleet.generate(REQUEST)
    with pytest.raises(EngineUnavailable, match="chat template"):
        await fleet.count_tokens(REQUEST.messages)


async def test_what_waits_goes_to_the_engine_that_is_ready_first(fleet: EngineFleet) -> None:
    stream = fleet.generate(REQUEST)
    assert busy(fleet) == [1, 0]
    fleet.parts[1]._life.loaded(FACTS)
    assert busy(fleet) == [0, 1]
    stream.cancel()
    assert busy(fleet) == [0, 0]
    end = await anext(stream)
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.CANCELLED


async def test_what_waits_at_an_engine_that_failed_waits_for_another(fleet: EngineFleet) -> None:
    stream = fleet.generate(REQUEST)
    fleet.parts[0]._life.failed("It crashed too often.")
    assert (busy(fleet), stream.closed) == ([0, 1], False)
    with pytest.raises(ValueError, match="still open"):
        fleet.generate(REQUEST)


async def test_a_conversation_is_not_sent_to_a_home_that_forgot_it(fleet: EngineFleet) -> None:
    for engine in fleet.parts:
        engine._life.loaded(FACTS)
    mine = Request("mine", REQUEST.messages, conversation="mine")
    fleet.generate(mine)
    fleet.parts[0]._life.died("It was killed.")
    fleet.parts[0]._life.loaded(FACTS)
    assert fleet._router._homes.get(("", "mine")) is None


async def test_each_owner_has_conversations_of_that_name(fleet: EngineFleet) -> None:
    for engine in fleet.parts:
        engine._life.loaded(FACTS)
    for owner in ("ann", "bob"):
        fleet.generate(Request(owner, REQUEST.messages, cache_salt=owner, conversation="default"))
    assert busy(fleet) == [1, 1]


async def test_the_sum_of_statistics_has_every_fact(fleet: EngineFleet) -> None:
    names = EngineStatistics.__struct_fields__
    fleet.parts[0]._statistics = EngineStatistics(*range(len(names)))
    fleet.parts[1]._statistics = EngineStatistics(*[100] * len(names))
    assert msgspec.structs.astuple(fleet.statistics()) == tuple(100 + fact for fact in range(len(names)))
