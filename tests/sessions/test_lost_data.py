"""A store that comes back with less than it had, a replica that lost its turns: each has one end, the same for all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from redis.asyncio import Redis

from sessions.events import Accepted, Done, Gap, Journalled, Reason, Snapshot
from sessions.records import digest
from sessions.store.journal import TurnJournal
from sessions.turn.turn import Cancel
from tests.sessions.chat_driver import CONVERSATION_ID, Chat, eventually, running_turns_in_store
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
    assert await chat.reap() == 1
    assert (await reader.next(Done)).seq == snapshot.seq + 1
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "This")]
    await chat.exchange("And now?", "Now.")
    events = reader.events[reader.events.index(reader.of(Snapshot)[-1]) + 1 :]
    assert continuous(events)


async def test_an_end_that_the_store_lost_comes_once_more_in_another_epoch(chat: Chat, store: Redis) -> None:
    accepted = await chat.running("Hello?", "This")
    kept = {key: await store.dump(key) for key in await store.keys("ms:*")}
    chat.engine.step(20)
    done = await chat.reader.next(Done)
    await chat.wait_idle()
    for key, dump in kept.items():
        await store.restore(key, 0, dump or b"", replace=True)
    back = Recorder()
    await chat.resume(back, done.seq, epoch=accepted.epoch)
    gap, snapshot = await back.next(Gap), await back.next(Snapshot)
    assert (gap.epoch != accepted.epoch, snapshot.turn_id) == (True, accepted.turn_id)
    assert await chat.reap() == 1
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
        monkeypatch.setattr(chat.sessions.rpc, "_open", lambda *message: None)
        await chat.lose_lease()
        await next_turn_runs(other)
        assert await ends_of(other) == ANSWERED


async def close_all(chat: Chat, other: Chat) -> int:
    """As when this replica stood still for longer than its lease."""
    await chat.lose_lease()
    return await other.reap()


async def test_lost_messages_of_the_queue_have_their_ends_too(chat: Chat, other: Chat, store: Redis) -> None:
    first = await chat.running("One?", "This")
    await chat.enqueue("Two?")
    await chat.enqueue("Three?")
    assert await close_all(chat, other) == 3
    chat.engine.step()
    await chat.reader.next(Done, count=3)
    await chat.wait_idle()
    assert [done.reason for done in chat.reader.of(Done)] == [Reason.INTERRUPTED] * 3
    assert chat.reader.of(Done)[0].turn_id == first.turn_id
    assert await other.texts() == ["One?", "This", "Two?", "", "Three?", ""]
    assert (chat.reader.of(Done)[0].chars, chat.reader.of(Done)[0].usage.generated_tokens) == (4, 1)
    assert await running_turns_in_store(store) == 0
    assert continuous(chat.reader.events)


async def test_text_that_was_stored_but_not_told_comes_before_the_end(
    chat: Chat, other: Chat, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store took it, and this replica stood still before it had the answer."""
    accepted = await chat.running("Hello?", "This")
    journal = chat.live_conversation.turns[0].journal
    assert journal is not None
    write = journal.write

    async def stand_still(event: Journalled) -> bool:
        await write(event)
        await close_all(chat, other)
        return await write(event)

    monkeypatch.setattr(TurnJournal, "write", lambda _, event: stand_still(event))
    chat.engine.step()
    done = await reader.next(Done)
    await chat.wait_idle()
    assert done.reason is Reason.INTERRUPTED
    assert digest(reader.text(accepted.turn_id)) == done.text_sha256
    assert continuous(reader.events)


async def test_a_message_behind_a_lost_reply_is_taken_in_when_that_is_noticed(
    chat: Chat, other: Chat, reader: Recorder
) -> None:
    await chat.running("One?", "This")
    await close_all(chat, other)
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
    assert await close_all(chat, other) == 1
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


async def test_an_end_that_keeps_what_was_withdrawn_comes_behind_a_gap(chat: Chat, other: Chat) -> None:
    """The user stopped it further up, but another replica had closed it."""
    accepted = await chat.running("Hello?", "This reply")
    await close_all(chat, other)
    chat.cancel(seen_off=4)
    done = await chat.reader.next(Done)
    await chat.wait_idle()
    assert chat.reader.withdrawn == {accepted.turn_id: 4}
    assert [type(event) for event in chat.reader.events[-3:]] == [Gap, Snapshot, Done]
    assert digest(str(chat.reader.of(Snapshot)[0].text)) == done.text_sha256
    assert chat.reader.of(Snapshot)[0].epoch != accepted.epoch
