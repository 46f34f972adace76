"""Several upstreams are one engine: conversations stay, and go around what is away or turns them away."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator

import pytest
from starlette.responses import JSONResponse

from engine.api import EngineState
from engine.errors import EngineBusy, EngineLost, EngineUnavailable
from engine.messages import FinishReason, Request, Retried
from engine.upstream.engine import UpstreamFleet
from engine.upstream.monitor import FAILURES
from engine.upstream.options import Timeouts
from tests.engine.replies import HELLO, outputs_of, text_of
from tests.engine.upstream.test_upstream import end_of, failing, make_request, options_for
from tests.engine.upstream.test_upstream_lifecycle import until
from tests.engine.upstream_server import Answer, UpstreamServer, upstream_server

TIMES = Timeouts(connect_s=2, health_s=100, unavailable_s=0.3)
BUSY = {"error": {"message": "busy"}}


@pytest.fixture
async def servers() -> AsyncIterator[tuple[UpstreamServer, UpstreamServer]]:
    async with upstream_server() as one, upstream_server() as other:
        yield one, other


@pytest.fixture
async def fleet(servers: tuple[UpstreamServer, UpstreamServer]) -> AsyncIterator[UpstreamFleet]:
    """Both upstreams, ready."""
    fleet = fleet_over(*servers)
    async with fleet.running():
        for part in fleet.parts:
            await part.ready(10)
        yield fleet


def fleet_over(*servers: UpstreamServer, times: Timeouts = TIMES) -> UpstreamFleet:
    return UpstreamFleet(
        [
            (
                options_for(server.url, name=f"up-{number}", timeouts=times, context_tokens=4096 >> number),
                None,
            )
            for number, server in enumerate(servers)
        ]
    )


def turn_of(conversation: str, request_id: str = "r") -> Request:
    return Request(request_id, HELLO, conversation=conversation)


def request_counts(*servers: UpstreamServer) -> list[int]:
    return [len(server.bodies) for server in servers]


async def test_another_process_sends_a_conversation_to_the_same_upstream(
    servers: tuple[UpstreamServer, UpstreamServer],
) -> None:
    """Two gateways, or one before and after a restart, whichever conversations each has seen so far."""
    homes = []
    for names in ("abcdefgh", "hgfedcba"):
        async with fleet_over(*servers).running() as fleet:
            for part in fleet.parts:
                await part.ready(10)
            went = {}
            for name in names:
                before = request_counts(*servers)
                await end_of(fleet.generate(turn_of(name)))
                went[name] = [
                    now - then for now, then in zip(request_counts(*servers), before, strict=True)
                ].index(1)
            homes.append(went)
    assert homes[0] == homes[1]
    assert set(homes[0].values()) == {0, 1}


async def test_a_request_that_is_turned_away_goes_elsewhere(
    fleet: UpstreamFleet, servers: tuple[UpstreamServer, UpstreamServer]
) -> None:
    servers[0].answers = [Answer(status=429, error=BUSY, headers={"Retry-After": "100"})]
    outputs = await outputs_of(fleet.generate(make_request()))
    assert (outputs[0], text_of(outputs)) == (Retried("r", elsewhere=True), "Hello there.")
    assert [part.statistics().shed for part in fleet.parts] == [1, 0]
    assert [part.statistics().fallbacks for part in fleet.parts] == [0, 1]
    assert request_counts(*servers) == [1, 1]
    await end_of(fleet.generate(make_request()))
    assert request_counts(*servers) == [1, 2], "the one that asked for a rest has it"


@pytest.mark.parametrize(("status", "asked"), [(503, [1, 1]), (500, [1, 3])])
async def test_a_request_that_all_turn_away_or_fail_ends(
    fleet: UpstreamFleet, servers: tuple[UpstreamServer, UpstreamServer], status: int, asked: list[int]
) -> None:
    """One that fails is asked again, if nobody else is left."""
    for server in servers:
        server.usual = Answer(status=status, error=BUSY)
    _, error = await failing(fleet.generate(make_request()))
    assert isinstance(error, EngineUnavailable)
    assert request_counts(*servers) == asked


async def test_an_upstream_that_is_left_alone_takes_nothing_over(
    fleet: UpstreamFleet, servers: tuple[UpstreamServer, UpstreamServer]
) -> None:
    for _ in range(FAILURES):
        fleet.parts[1].monitor.circuit.failed()
    fleet.parts[1].monitor.circuit._until = math.inf
    servers[0].answers = [Answer(status=429, error=BUSY, headers={"Retry-After": "9"})]
    _, error = await failing(fleet.generate(make_request()))
    assert isinstance(error, EngineBusy)
    assert (error.retry_after_s, request_counts(*servers)) == (9, [1, 0])


async def test_a_request_has_the_time_it_may_take_once_however_many_are_asked(
    fleet: UpstreamFleet, servers: tuple[UpstreamServer, UpstreamServer]
) -> None:
    fails = Answer(hold_after=0, fail_after=0, error=BUSY["error"])
    servers[0].answers, servers[1].answers = [fails], [Answer(hold_after=0)]
    stream = fleet.generate(make_request(max_time_s=3600))
    await servers[0].held.wait()
    stream.deadline = asyncio.get_running_loop().time()
    fails.go.set()
    async with asyncio.timeout(60):
        assert (await end_of(stream)).reason is FinishReason.TIMEOUT
    assert fleet.parts[1].statistics().fallbacks == 1


async def test_a_reply_that_broke_off_is_not_begun_again(
    fleet: UpstreamFleet, servers: tuple[UpstreamServer, UpstreamServer]
) -> None:
    servers[0].answers = [Answer(cut_after=1)]
    text, error = await failing(fleet.generate(make_request()))
    assert (text, type(error)) == ("Hello", EngineLost)
    assert request_counts(*servers) == [1, 0]


async def test_a_cancel_finds_a_request_that_went_elsewhere(
    fleet: UpstreamFleet, servers: tuple[UpstreamServer, UpstreamServer]
) -> None:
    servers[0].answers = [Answer(status=500, error=BUSY)]
    servers[1].answers = [Answer(hold_after=0)]
    stream = fleet.generate(make_request())
    await servers[1].held.wait()
    with pytest.raises(ValueError, match="still open"):
        fleet.generate(make_request())
    stream.cancel()
    assert (await end_of(stream)).reason is FinishReason.CANCELLED
    async with asyncio.timeout(30):
        await servers[1].closed.wait()


async def test_what_waits_for_one_that_is_away_goes_to_the_first_that_answers() -> None:
    async with upstream_server() as away, upstream_server() as late:
        away.models = late.models = JSONResponse({}, 503)
        fleet = fleet_over(away, late, times=Timeouts(health_s=0.05, unavailable_s=20))
        async with fleet.running():
            with pytest.raises(EngineUnavailable, match="No engine is ready"):
                await fleet.ready(0.2)
            streams = [fleet.generate(turn_of(name, name)) for name in "abc"]
            late.models = JSONResponse({"data": []})
            for stream in streams:
                assert text_of(await outputs_of(stream)) == "Hello there."
            assert request_counts(away, late) == [0, 3]
        with pytest.raises(EngineUnavailable, match="stopped"):
            await fleet.ready()


async def test_one_that_is_gone_is_gone_around() -> None:
    async with upstream_server() as stays:
        async with upstream_server() as goes:
            fleet = fleet_over(goes, stays)
            running = fleet.running()
            await running.__aenter__()
            for part in fleet.parts:
                await part.ready(10)
        await end_of(fleet.generate(turn_of("b")))
        assert fleet.parts[0].status.state is EngineState.RESTARTING
        assert await fleet.ready()
        assert request_counts(stays) == [1]
    fleet.parts[1].monitor._look.set()
    await until(fleet.parts[1], EngineState.RESTARTING)
    with pytest.raises(EngineUnavailable):
        await fleet.ready()
    await running.__aexit__(None, None, None)
