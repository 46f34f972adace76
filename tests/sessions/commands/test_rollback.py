"""`mode:"rollback"` takes the exchange out of the history."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from engine.scripted import ScriptedEngine
from sessions.errors import Busy, Conflict
from sessions.events import Done, Removed
from sessions.records import Meta
from sessions.store.codec import Keys
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually
from tests.sessions.recorder import Recorder, continuous


async def test_an_ended_exchange_is_removed_and_all_are_told(chat: Chat, reader: Recorder) -> None:
    first = await chat.exchange("Hello?", "Hello.")
    done = await chat.exchange("And now?")
    second = Recorder()
    await chat.history(second)
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, done.turn_id)
    assert second.of(Removed) == reader.of(Removed)
    assert (second.of(Removed)[0].turn_id, second.of(Removed)[0].seq) == (done.turn_id, done.seq + 1)
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "Hello.")]
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, first.turn_id)
    assert await chat.messages() == []
    await chat.exchange("Hello again?", "Hello.")
    assert await chat.messages() == [("user", "Hello again?"), ("assistant", "Hello.")]
    assert continuous(reader.events)


async def test_an_exchange_that_was_followed_stays_also_under_a_running_reply(chat: Chat) -> None:
    done = await chat.exchange("Hello?")
    await chat.running("And now?", "This")
    with pytest.raises(Conflict):
        await chat.sessions.take_back(chat.owner, CONVERSATION_ID, done.turn_id)
    await chat.stop()
    with pytest.raises(Conflict):
        await chat.sessions.take_back(chat.owner, CONVERSATION_ID, done.turn_id)


async def test_what_is_not_there_is_no_error(chat: Chat, reader: Recorder) -> None:
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, "turn_x")
    done = await chat.exchange("Hello?")
    for _ in range(2):
        await chat.sessions.take_back(chat.owner, CONVERSATION_ID, done.turn_id)
    await chat.sessions.take_back(chat.owner, CONVERSATION_ID, "turn_x")
    assert len(reader.of(Removed)) == 1


async def test_one_whose_end_is_just_being_written_is_removed_after_it(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    """A rollback behind a cancel that kept the text is not forgotten."""
    engine.hold_cancels = True
    accepted = await chat.running("Hello?", "This")
    chat.cancel()
    assert chat.cancel(accepted.turn_id, rollback=True).already
    taking = chat.sessions.take_back(chat.owner, CONVERSATION_ID, accepted.turn_id)
    engine.step()
    await taking
    assert [type(event) for event in reader.events[-2:]] == [Done, Removed]
    assert await chat.messages() == []


async def test_a_removal_goes_on_when_its_sender_leaves(chat: Chat, reader: Recorder) -> None:
    done = await chat.exchange("Hello?")
    removal = asyncio.ensure_future(chat.sessions.take_back(chat.owner, CONVERSATION_ID, done.turn_id))
    await eventually(chat.live_conversation.write_lock.locked)
    removal.cancel()
    assert (await reader.next(Removed)).turn_id == done.turn_id


async def test_a_conversation_that_changes_elsewhere_meanwhile_is_busy(
    chat: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write another replica was faster."""
    done = await chat.exchange("Hello?")
    looked = chat.sessions.parts.storage.history.load

    async def changed_behind(keys: Keys) -> Meta | None:
        meta = await looked(keys)
        await store.hincrby(keys.conversation, "seq", 1)
        return meta

    monkeypatch.setattr(chat.sessions.parts.storage.history, "load", changed_behind)
    with pytest.raises(Busy):
        await chat.sessions.take_back(chat.owner, CONVERSATION_ID, done.turn_id)
