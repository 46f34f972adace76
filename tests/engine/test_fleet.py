"""Two real engines on the demo model behind one interface: affinity, load, a death of one of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from app.settings import DEMO_MODEL
from engine.api import EngineState, Streamer
from engine.errors import EngineLost
from engine.machine import EngineOptions, shared_out
from engine.messages import FinishReason, Message, Params, Request
from engine.process.client import EngineClient
from engine.process.supervision import RestartPolicy
from engine.served_models import EngineFleet
from tests.engine.replies import HELLO, reply_of, until_it_writes

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = (Message("user", "Count from 1 to 300."),)
PLACES = 4
_ids = count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[EngineFleet]:
    one = EngineOptions(model=str(DEMO_MODEL), device="cpu", dtype="float32", max_batch=PLACES)
    policy = RestartPolicy(first_delay_s=0.01, deaths=100)
    async with EngineFleet(shared_out([one, one], cores=2), restarts=policy).running() as fleet:
        yield fleet


async def text_of(stream: Streamer) -> str:
    return (await reply_of(stream))[0]


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(running: EngineFleet) -> EngineFleet:
    """Both engines serve, and have nothing to do."""
    for engine in running.parts:
        await engine.ready(timeout_s=100)
    assert busy(running) == [0, 0]
    return running


def make_request(conversation: str = "", messages: tuple[Message, ...] = HELLO, tokens: int = 12) -> Request:
    params = Params(max_new_tokens=tokens, do_sample=False)
    return Request(f"r{next(_ids)}", messages, params, cache_salt="ann", conversation=conversation)


def busy(fleet: EngineFleet) -> list[int]:
    return [engine.open_requests for engine in fleet.parts]


async def turn(fleet: EngineFleet, conversation: str) -> int:
    """Have a turn answered. Returns which engine did it."""
    stream = fleet.generate(make_request(conversation))
    served = busy(fleet).index(1)
    await text_of(stream)
    return served


def kill(engine: EngineClient) -> None:
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)


async def test_a_later_turn_finds_what_its_conversation_kept(fleet: EngineFleet) -> None:
    first = Message("user", "My cat is called Oscar, and my dog is called Bella.")
    reply = await text_of(fleet.generate(make_request("pets", (first,))))
    later = (first, Message("assistant", reply), Message("user", "What is my cat called?"))
    at_home = fleet.generate(make_request("pets", later))
    elsewhere = fleet.parts[busy(fleet).index(0)].generate(make_request(messages=later))
    known = await fleet.count_tokens([first])
    cached = [(await reply_of(stream))[1].cached_tokens for stream in (elsewhere, at_home)]
    assert cached[0] < known < cached[1]


async def test_a_killed_engine_is_routed_around_until_it_serves_again(fleet: EngineFleet) -> None:
    victim = await turn(fleet, "survivor")
    dying, living = fleet.parts[victim], fleet.parts[1 - victim]
    lost = dying.generate(make_request(messages=LONG, tokens=600))
    kept = living.generate(make_request(messages=LONG, tokens=60))
    await until_it_writes(lost)
    kill(dying)
    with pytest.raises(EngineLost, match="SIGKILL"):
        await text_of(lost)
    assert (fleet.status.state, fleet.status.restarts) == (EngineState.READY, 1)
    assert dying.status.state is EngineState.RESTARTING
    assert await run_concurrent_turn(fleet, "survivor", kept) == 1 - victim
    await dying.ready(timeout_s=100)
    assert await turn(fleet, "newcomer") == victim


async def run_concurrent_turn(fleet: EngineFleet, conversation: str, other: Streamer) -> int:
    """Have a turn answered while another reply is written. Returns which engine did it."""
    before = busy(fleet)
    stream = fleet.generate(make_request(conversation))
    served = [now - then for now, then in zip(busy(fleet), before, strict=True)].index(1)
    assert await text_of(stream)
    assert (await reply_of(other))[1].reason is FinishReason.LENGTH
    return served


async def test_what_waits_while_no_engine_runs_is_served_by_the_first_that_does(fleet: EngineFleet) -> None:
    for engine in fleet.parts:
        kill(engine)
    lost = [text_of(engine.generate(make_request())) for engine in fleet.parts]
    assert [type(ended) for ended in await asyncio.gather(*lost, return_exceptions=True)] == [EngineLost] * 2
    assert fleet.status.state is EngineState.RESTARTING
    assert await asyncio.gather(text_of(fleet.generate(make_request())), fleet.count_tokens(HELLO))
