"""A replica that lost its turns: each of them has one end, the same for all, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from sessions.events import Accepted, Done, Gap, Journalled, Reason, Snapshot
from sessions.records import digest
from sessions.store.journal import TurnJournal
from tests.sessions.chat_driver import Chat, eventually, running_turns_in_store
from tests.sessions.recorder import Recorder, continuous
from tests.sessions.test_lost_data import forgetting


async def close_all(chat: Chat, other: Chat, store: Redis) -> int:
    """As when this replica stood still for longer than its lease."""
    await store.delete(f"ms:replica:{chat.sessions.parts.storage.ownership.replica}")
    return await other.sessions.parts.reaper.reap()


async def enqueue(chat: Chat, content: str) -> asyncio.Task[object]:
    """Sends a message behind the running reply, and waits until it is accepted there."""
    count = len(chat.reader.of(Accepted)) + 1
    sending = chat.begin_send(content, on_busy="enqueue")
    await chat.reader.next(Accepted, count=count)
    return sending


async def test_lost_messages_of_the_queue_have_their_ends_too(
    chat: Chat, other: Chat, store: Redis, reader: Recorder
) -> None:
    first = await chat.running("One?", "This")
    await enqueue(chat, "Two?")
    await enqueue(chat, "Three?")
    assert await close_all(chat, other, store) == 3
    chat.engine.step()
    await reader.next(Done, count=3)
    await chat.wait_idle()
    assert [done.reason for done in reader.of(Done)] == [Reason.INTERRUPTED] * 3
    assert reader.of(Done)[0].turn_id == first.turn_id
    contents = [content for _, content in await other.messages()]
    assert contents == ["One?", "This", "Two?", "", "Three?", ""]
    assert await running_turns_in_store(store) == 0
    assert continuous(reader.events)


async def test_text_that_was_stored_but_not_told_comes_before_the_end(
    chat: Chat, other: Chat, store: Redis, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took it, and this replica stood still before it had the answer."""
    accepted = await chat.running("Hello?", "This")
    journal = chat.live_conversation.turns[0].journal
    assert journal is not None
    write = journal.write

    async def stand_still(event: Journalled) -> bool:
        await write(event)
        await close_all(chat, other, store)
        return await write(event)

    monkeypatch.setattr(TurnJournal, "write", lambda _, event: stand_still(event))
    chat.engine.step()
    done = await reader.next(Done)
    await chat.wait_idle()
    assert done.reason is Reason.INTERRUPTED
    assert digest(reader.text(accepted.turn_id)) == done.text_sha256
    assert continuous(reader.events)


async def test_a_message_behind_a_lost_reply_is_taken_in_when_that_is_noticed(
    chat: Chat, other: Chat, store: Redis, reader: Recorder
) -> None:
    await chat.running("One?", "This")
    await close_all(chat, other, store)
    sending = chat.begin_send("Two?", on_busy="enqueue")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    chat.engine.script("Two.")
    chat.engine.step()
    await reader.next(Accepted, count=2)
    assert await sending is None
    assert [done.reason for done in reader.of(Done)] == [Reason.INTERRUPTED]
    await eventually(lambda: len(chat.engine.requests) == 2)
    chat.engine.step(20)
    await reader.next(Done, count=2)
    assert continuous(reader.events)


async def test_a_reply_whose_conversation_is_gone_from_the_store_has_its_end(
    chat: Chat, store: Redis, reader: Recorder
) -> None:
    await chat.running("Hello?", "This")
    await store.flushdb()
    chat.engine.step()
    done = await reader.next(Done)
    await chat.wait_idle()
    assert (done.reason, done.saved, reader.text(done.turn_id)) == (Reason.INTERRUPTED, False, "This")


async def test_an_end_that_keeps_less_than_was_told_comes_behind_a_gap(
    chat: Chat, other: Chat, store: Redis, reader: Recorder
) -> None:
    """Seqs never go back: another epoch begins, in which the turn stands right before its end."""
    accepted = await chat.running("Hello?", "This")
    async with forgetting(chat, store):
        await chat.step()
        await chat.step()
    assert await close_all(chat, other, store) == 1
    chat.engine.step()
    done = await reader.next(Done)
    await chat.wait_idle()
    gap, snapshot = reader.of(Gap)[0], reader.of(Snapshot)[0]
    assert gap.epoch == snapshot.epoch != accepted.epoch
    assert (snapshot.turn_id, snapshot.text) == (accepted.turn_id, "This")
    assert [type(event) for event in reader.events[-3:]] == [Gap, Snapshot, Done]
    assert (done.seq, done.text_sha256) == (snapshot.seq + 1, digest("This"))
    await chat.exchange("And now?", "Now.")
    assert continuous(reader.events[reader.events.index(snapshot) + 1 :])


async def test_an_end_that_keeps_what_was_withdrawn_comes_behind_a_gap(
    chat: Chat, other: Chat, store: Redis, reader: Recorder
) -> None:
    """The user stopped it further up, but another replica had closed it."""
    accepted = await chat.running("Hello?", "This reply")
    await close_all(chat, other, store)
    chat.cancel(seen_off=4)
    done = await reader.next(Done)
    await chat.wait_idle()
    assert reader.withdrawn == {accepted.turn_id: 4}
    assert [type(event) for event in reader.events[-3:]] == [Gap, Snapshot, Done]
    assert digest(str(reader.of(Snapshot)[0].text)) == done.text_sha256
    assert reader.of(Snapshot)[0].epoch != accepted.epoch
