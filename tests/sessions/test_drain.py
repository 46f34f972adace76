"""A server that stops lets replies end, for a while, and leaves none without an end."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.commands import turn_manager
from sessions.events import Accepted, Done, Reason
from sessions.records import Owner
from sessions.service import Sessions
from sessions.store.codec import Keys
from sessions.store.history import History
from sessions.turn.policy import Policy
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, running_turns_in_store, serving
from tests.sessions.recorder import Recorder


async def test_a_message_that_is_just_coming_in_is_ended_too(chat: Chat) -> None:
    sending = chat.begin_send("Hello?")
    await chat.sessions.drain(0)
    assert await sending is None
    assert len(chat.reader.of(Accepted)) == len(chat.reader.of(Done)) == 1
    assert chat.engine.requests == []


async def test_a_reply_whose_end_does_not_come_holds_up_no_drain(
    chat: Chat, reader: Recorder, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_manager, "DRAIN_CANCEL_S", 0.01)
    engine.hold_cancels = True
    await chat.running("Hello?", "This")
    await chat.sessions.drain(0)
    assert reader.of(Done) == []
    engine.step()
    assert (await reader.next(Done)).reason is Reason.INTERRUPTED


async def test_leaving_ends_what_runs(store: Redis, engine: ScriptedEngine, owner: Owner) -> None:
    async with serving(store, engine) as chat:
        await chat.running("Hello?", "This")
    assert chat.reader.of(Done)[0].saved
    meta = await History(store, ttl_s=60, replica="here").load(Keys.of(owner, CONVERSATION_ID))
    assert meta is not None
    assert meta.running is None
    assert await store.keys("ms:replica:*") == []
    assert await running_turns_in_store(store) == 0


async def test_leaving_by_an_error_leaves_no_task(store: Redis, engine: ScriptedEngine, owner: Owner) -> None:
    sessions = Sessions(client=store, engine=engine, policy=Policy(ttl_s=60, max_turns=10))
    failure: BaseException | None = None
    try:
        async with sessions.running(alone=True):
            await Chat(sessions, engine, owner, Recorder()).running("Hello?", "This")
            raise ZeroDivisionError  # noqa: TRY301 - what a floor above might raise
    except* ZeroDivisionError as group:
        failure = group
    assert failure is not None
    assert asyncio.all_tasks() == {asyncio.current_task()}
