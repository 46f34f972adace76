"""A store that refuses for a while what settles calls: it is kept in the end, whoever asks, and acknowledged no sooner."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions import tool_round
from sessions.errors import StoreDown
from sessions.events import Accepted, CallState, Reason
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import WAIT_S, Recorder, continuous
from tests.sessions.tool_round.sample_tools import BERN, ROME, TOOLS
from tests.store_faults import refusing_writes


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is tried again soon."""
    monkeypatch.setattr(tool_round, "AGAIN_S", 0.02)


async def stored_state(chat: Chat, call_id: str) -> CallState | None:
    call = await chat.sessions.parts.storage.history.call(chat.keys, call_id)
    return call.state if call is not None else None


async def test_a_result_that_the_store_refused_is_kept_without_anybodys_doing(
    chat: Chat, store: Redis, reader: Recorder
) -> None:
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    async with refusing_writes(store):
        for _ in range(3):  # no device is told that it is kept
            with pytest.raises(StoreDown):
                await chat.result(done.open[0], "Rain.")
        assert await stored_state(chat, done.open[0]) is CallState.WAITING
    async with asyncio.timeout(WAIT_S):
        while await stored_state(chat, done.open[0]) is not CallState.DONE:  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0)
    assert (await chat.result(done.open[0], "Rain.")).already
    assert not (await chat.result(done.open[1], "Sun.")).already
    assert (await chat.follow("Both.")).reason is Reason.STOP
    assert continuous(reader.events)


async def test_a_message_behind_open_calls_is_taken_in_once_the_store_takes_writes_again(
    chat: Chat, store: Redis, reader: Recorder, engine: ScriptedEngine
) -> None:
    done = await chat.play("Weather?", BERN, ROME, tools=TOOLS)
    async with refusing_writes(store):
        with pytest.raises(StoreDown):
            await chat.result(done.open[0], "Rain.")
        with pytest.raises(StoreDown):
            await chat.send("And then?", on_busy="enqueue")
    sending = chat.begin_send("And then?", on_busy="enqueue")
    queued = await reader.next(Accepted, count=2)
    await chat.result(done.open[1], "Sun.")
    await chat.follow("Both.")
    engine.script(["Then."])
    await eventually(lambda: len(engine.requests) == 3)
    await chat.finish(queued.turn_id)
    assert await sending is None
    assert continuous(reader.events)


async def test_who_comes_back_is_told_of_a_turn_that_the_store_does_not_have_so_far(
    chat: Chat, store: Redis, reader: Recorder
) -> None:
    done = await chat.play("Weather?", BERN, tools=TOOLS)
    back = Recorder()
    async with refusing_writes(store):
        with pytest.raises(StoreDown):
            await chat.result(done.open[0], "Rain.")
        await reader.next(Accepted, count=2)
        await chat.resume(back, done.seq)
    assert [one.follows for one in back.of(Accepted)] == [done.turn_id]
    await chat.follow("Rain.")
    assert continuous(back.events)
