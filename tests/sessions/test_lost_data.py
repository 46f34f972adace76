"""A store that comes back with less than it had: turns end all the same, and whoever saw more is told of another epoch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from sessions.events import Accepted, Done, Gap, Snapshot
from sessions.turn.turn import Cancel
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually
from tests.sessions.recorder import Recorder, continuous


@asynccontextmanager
async def forgetting(chat: Chat, store: Redis) -> AsyncIterator[None]:
    """What is written within is gone behind it."""
    kept = [await store.dump(key) for key in chat.keys.pair()]
    yield
    for key, dump in zip(chat.keys.pair(), kept, strict=True):
        await store.restore(key, 0, dump or b"", replace=True)


async def test_a_turn_whose_text_the_store_lost_is_closed(chat: Chat, store: Redis, reader: Recorder) -> None:
    await chat.running("Hello?", "This")
    async with forgetting(chat, store):
        await chat.step()
    chat.engine.step()
    await chat.wait_idle()
    assert chat.engine.statistics().cancels == 1
    gap, snapshot = await reader.next(Gap), await reader.next(Snapshot)
    assert gap.epoch != reader.of(Accepted)[0].epoch
    assert (snapshot.turn_id, snapshot.text) == (reader.of(Accepted)[0].turn_id, "This")
    assert await chat.sessions.parts.reaper.reap() == 1
    assert (await reader.next(Done)).seq == snapshot.seq + 1
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "This")]
    await chat.exchange("And now?", "Now.")
    events = reader.events[reader.events.index(reader.of(Snapshot)[-1]) + 1 :]
    assert continuous(events)


async def test_an_end_that_the_store_lost_comes_once_more_in_another_epoch(
    chat: Chat, store: Redis, reader: Recorder
) -> None:
    accepted = await chat.running("Hello?", "This")
    kept = {key: await store.dump(key) for key in await store.keys("ms:*")}
    chat.engine.step(20)
    done = await reader.next(Done)
    await chat.wait_idle()
    for key, dump in kept.items():
        await store.restore(key, 0, dump or b"", replace=True)
    back = Recorder()
    await chat.resume(back, done.seq, epoch=accepted.epoch)
    gap, snapshot = await back.next(Gap), await back.next(Snapshot)
    assert (gap.epoch != accepted.epoch, snapshot.turn_id) == (True, accepted.turn_id)
    assert await chat.sessions.parts.reaper.reap() == 1
    assert (await back.next(Done)).seq == snapshot.seq + 1
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "This")]
    back.closed = True


@asynccontextmanager
async def orphaned_turn(chat: Chat, store: Redis) -> AsyncIterator[str]:
    """Yields a turn that the store has as running at a replica, and that no list names: its row went by another master."""
    accepted = await chat.running("Hello?", "This")
    async with forgetting(chat, store):
        chat.engine.step(20)
        await chat.reader.next(Done)
        await chat.wait_idle()
    yield accepted.turn_id


async def ends_of(chat: Chat) -> list[tuple[str, str]]:
    return [(message.role, message.status) for message in (await chat.history()).messages]


async def next_turn_runs(chat: Chat) -> None:
    chat.engine.script("Now.")
    accepted = await chat.running("And now?", client_msg_id="now")
    await chat.finish(accepted.turn_id)


LEFT = [("user", "complete"), ("assistant", "interrupted")]
ANSWERED = [*LEFT, ("user", "complete"), ("assistant", "complete")]


async def test_a_message_ends_a_turn_that_the_store_has_as_running_and_nobody_runs(
    chat: Chat, store: Redis
) -> None:
    async with orphaned_turn(chat, store):
        await next_turn_runs(chat)
        assert await ends_of(chat) == ANSWERED


async def test_so_does_one_that_comes_to_another_replica(chat: Chat, other: Chat, store: Redis) -> None:
    async with orphaned_turn(chat, store):
        chat.engine.script("Now.")
        accepted = await other.send("And now?", client_msg_id="elsewhere")
        await eventually(lambda: chat.engine.requests[-1].request_id == accepted.turn_id)
        chat.engine.step(20)
        await other.reader.next(Done)
        await chat.wait_idle()
        assert await ends_of(other) == ANSWERED


async def test_so_does_the_same_message_once_more_which_is_told_of_its_end(chat: Chat, store: Redis) -> None:
    async with orphaned_turn(chat, store) as turn_id:
        again = Recorder()
        await chat.send("Hello?", reader=again, client_msg_id="msg-1")
        assert (await again.next(Done)).turn_id == turn_id
        assert await ends_of(chat) == LEFT


@pytest.mark.parametrize("at", ["here", "another replica"])
async def test_so_does_a_cancel(chat: Chat, other: Chat, store: Redis, at: str) -> None:
    async with orphaned_turn(chat, store) as turn_id:
        assert chat.cancel().already
        cancel = Cancel(turn_id=turn_id, conversation_id=CONVERSATION_ID)
        await (chat if at == "here" else other).sessions.cancel_elsewhere(chat.owner, cancel)
        assert await ends_of(chat) == LEFT


async def test_so_does_a_message_once_its_replica_is_dead(
    chat: Chat, other: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with orphaned_turn(chat, store):
        monkeypatch.setattr(chat.sessions.parts.rpc, "_open", lambda *message: None)
        await store.delete(f"ms:replica:{chat.sessions.parts.storage.ownership.replica}")
        await next_turn_runs(other)
        assert await ends_of(other) == ANSWERED
