"""A call that needs approval runs as it was looked at, or as whoever allowed it changed it, and not for ever."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.errors import Conflict
from sessions.events import CallState, Done, Reason, ToolCall, ToolState
from sessions.records import digest
from sessions.turn.policy import ToolLimits
from tests.sessions.chat_driver import Chat, serving
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.tool_round.sample_tools import BERN, FIFTY, TOOLS

FORTY = '{"amount": 40}'


async def test_a_call_waits_until_any_device_allows_it_and_its_result_comes_behind_that(
    chat: Chat, reader: Recorder
) -> None:
    done = await chat.play("Pay!", FIFTY, BERN, tools=TOOLS)
    call, plain = reader.of(ToolCall)
    assert (call.needs, call.expires_at is not None) == ("approval", True)
    with pytest.raises(Conflict, match="not been allowed"):
        await chat.result(done.open[0], "Paid.")
    with pytest.raises(Conflict, match="approval"):
        await chat.decide(plain)
    phone = Recorder()
    await chat.history(phone)
    phones = Chat(chat.sessions, chat.engine, chat.owner, phone)
    assert (await phones.decide(call)).state is CallState.RUNNING
    assert phone.of(ToolState) == reader.of(ToolState)
    for call_id in done.open:
        await chat.result(call_id, "Paid.")
    assert (await chat.follow("Done.")).reason is Reason.STOP
    running, ended = CallState.RUNNING, CallState.DONE
    assert [state.state for state in reader.of(ToolState)] == [running, ended, ended]
    assert continuous(reader.events)


async def test_it_runs_with_other_arguments_where_whoever_allowed_it_changed_them(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    done = await chat.play("Pay!", FIFTY, tools=TOOLS)
    await chat.decide(reader.of(ToolCall)[0], args=FORTY)
    moved = reader.of(ToolState)[0]
    assert (moved.args, moved.args_sha256) == (FORTY, digest(FORTY))
    page = await chat.history(Recorder())
    assert isinstance(page.messages[1].calls, tuple)
    assert page.messages[1].calls[0].args_sha256 == digest(FORTY)
    await chat.result(done.open[0], "Paid.")
    await chat.follow("Done.")
    assert engine.requests[-1].messages[1].calls[0].arguments == FIFTY.arguments


async def test_the_same_decision_again_is_answered_as_before_and_another_is_a_conflict(
    chat: Chat, reader: Recorder
) -> None:
    await chat.play("Pay!", FIFTY, FIFTY, tools=TOOLS)
    first, second = reader.of(ToolCall)
    await chat.decide(first, args=FORTY)
    assert (await chat.decide(first, args=FORTY)).already
    for change in ({"args": None}, {"allow": False}):
        with pytest.raises(Conflict):
            await chat.decide(first, **change)  # type: ignore[arg-type]
    await chat.decide(second, allow=False)
    assert (await chat.decide(second, allow=False)).already
    with pytest.raises(Conflict):
        await chat.decide(second)
    assert len(reader.of(ToolState)) == 2


async def test_a_call_that_nobody_answers_expires_and_the_turn_goes_on(
    store: Redis, engine: ScriptedEngine
) -> None:
    async with serving(store, engine, tools=ToolLimits(wait_s=0.05)) as chat:
        await chat.play("Pay!", FIFTY, BERN, tools=TOOLS)
        await chat.follow("Well.")
        states = [state.state for state in chat.reader.of(ToolState)]
        assert states == [CallState.EXPIRED, CallState.EXPIRED]
        assert "in time" in engine.requests[-1].messages[-1].content
        for call in chat.reader.of(ToolCall):
            with pytest.raises(Conflict, match="expired"):
                await chat.result(call.call_id, "Late.")
        assert len(chat.reader.of(Done)) == 2
        assert continuous(chat.reader.events)
