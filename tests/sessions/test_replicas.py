"""Two replicas on one store: whoever is attached anywhere sees the same, and keeps the turn alive."""

from __future__ import annotations

from functools import partial

import pytest
from redis.asyncio import Redis

from sessions.conversation.conversation import Conversation
from sessions.conversation.history_page import HistoryPage
from sessions.events import Accepted, Delta, Done, Event, Gap, Reason, Removed, Resumed, Snapshot
from sessions.records import digest
from sessions.turn.message_request import Continue
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder, continuous

pytestmark = pytest.mark.usefixtures("often")


@pytest.fixture
async def followed(chat: Chat, other: Chat) -> Chat:
    """The second replica, its connection attached to a conversation of the first one."""
    await chat.exchange("Hi!", "Hi.")
    await other.history()
    return other


def plain(events: list[Event]) -> list[Event]:
    """As connections see them that did not send."""
    return [event for event in events if isinstance(event, Delta | Done | Removed)]


def has_seen(reader: Recorder, seq: int) -> bool:
    """Whether the last that it was told of the conversation is this seq."""
    received = [event.seq for event in reader.events if isinstance(event, Accepted | Delta | Done | Snapshot)]
    return received[-1] == seq


async def watchers(chat: Chat, store: Redis) -> int:
    return len((await store.hget(chat.keys.conversation, "watchers") or b"").split())


async def until_watched_remotely(live_conversation: Conversation) -> None:
    """Until the owner knows that the other replica watches."""
    await eventually(lambda: live_conversation.others.watched)


async def test_the_other_replica_shows_the_running_reply_and_follows_it(chat: Chat, other: Chat) -> None:
    """In its history, in a snapshot, and to a duplicate."""
    accepted = await chat.running("Hello?", "This reply", client_msg_id="one")
    page = await other.history()
    assert (page.messages[-1].content, page.messages[-1].status) == ("This reply", "running")
    returned, twin = Recorder(), Recorder()
    await other.resume(returned, 1, epoch="another")
    snapshot = returned.of(Snapshot)[0]
    assert (snapshot.turn_id, snapshot.text) == (accepted.turn_id, "This reply")
    again = await other.send("Hello?", client_msg_id="one", reader=twin)
    assert (again.duplicate, again.turn_id) == (True, accepted.turn_id)
    delta = await twin.next(Delta)
    assert (delta.off, delta.text, delta.first_seq) == (0, "This reply", accepted.seq + 1)
    chat.engine.step(20)
    for reader, seq, text in (
        (other.reader, page.seq, "This reply"),
        (returned, snapshot.seq, snapshot.text),
    ):
        done = await reader.next(Done)
        assert reader.of(Delta)[0].first_seq == seq + 1
        assert digest(f"{text}{reader.text(accepted.turn_id)}") == done.text_sha256
    assert digest(twin.text(accepted.turn_id)) == (await twin.next(Done)).text_sha256
    assert continuous(twin.events)
    assert other.engine.requests == []
    for one in (returned, twin):
        other.leave(one)


async def test_a_reader_comes_back_on_the_other_replica(chat: Chat, other: Chat, reader: Recorder) -> None:
    accepted = await chat.running("Hello?", "This reply", grace_s=60)
    seen = reader.of(Delta)[0].seq
    chat.leave()
    await other.resume(other.reader, seen)
    resumed = other.reader.of(Resumed)[0]
    assert (resumed.replayed, resumed.live) == (1, accepted.turn_id)
    await until_watched_remotely(chat.live_conversation)
    chat.engine.step(20)
    done = await other.reader.next(Done)
    text = reader.of(Delta)[0].text + other.reader.text(accepted.turn_id)
    assert (done.reason, digest(text)) == (Reason.STOP, done.text_sha256)
    assert continuous(other.reader.events)


async def test_a_turn_goes_on_while_only_the_other_replicas_connection_is_attached(
    chat: Chat, followed: Chat, store: Redis
) -> None:
    await chat.running("Hello?", "This")
    await until_watched_remotely(chat.live_conversation)
    chat.leave()
    await eventually(lambda: not chat.live_conversation.others.watching)
    assert await watchers(chat, store) == 1
    chat.engine.step(20)
    assert (await followed.reader.next(Done)).reason is Reason.STOP


@pytest.mark.parametrize("dies", [False, True])
async def test_it_is_cancelled_when_that_one_leaves_or_its_replica_dies(
    chat: Chat, followed: Chat, store: Redis, *, dies: bool
) -> None:
    """Nobody takes a dead replica off the list but those who find its lease gone."""
    await chat.running("Hello?", "This")
    await until_watched_remotely(chat.live_conversation)
    chat.leave()
    if dies:
        await followed.lose_lease()
    else:
        followed.leave()
    await chat.wait_idle()
    assert await watchers(chat, store) == 0
    page = await chat.history(Recorder())
    assert (page.messages[-1].content, page.messages[-1].status) == ("This", "cancelled")


async def test_grace_begins_when_the_other_replicas_connection_leaves(chat: Chat, followed: Chat) -> None:
    await chat.running("Hello?", "This", grace_s=60)
    await until_watched_remotely(chat.live_conversation)
    chat.leave()
    assert chat.live_conversation.turns[0].grace is None
    followed.leave()
    await eventually(lambda: chat.live_conversation.turns[0].grace is not None)
    returned = Recorder()
    await followed.history(returned)
    await eventually(lambda: chat.live_conversation.turns[0].grace is None)
    followed.leave(returned)
    chat.cancel()


async def test_a_request_that_fails_leaves_no_watcher_behind(chat: Chat, other: Chat, store: Redis) -> None:
    """Else the turn would never be unattended."""
    await chat.running("Hello?", "This")
    with pytest.raises(Exception, match="no message"):
        await other.history(before="unknown")
    await eventually(lambda: other.sessions.statistics().conversations == 0)
    assert await watchers(chat, store) == 1
    chat.cancel()


async def test_lost_messages_are_filled_from_the_journal(chat: Chat, followed: Chat, store: Redis) -> None:
    """The channel breaks, events pass, and it comes back: by the next event at the latest they are there."""
    await chat.running("Hello?", "This")
    await followed.reader.next(Delta)
    await store.client_kill_filter(_type="pubsub")
    chat.engine.step(20)
    done = await followed.reader.next(Done)
    assert continuous(followed.reader.events)
    assert digest(followed.reader.text(done.turn_id)) == done.text_sha256


async def test_messages_lost_at_the_very_end_are_not_missed(
    chat: Chat, followed: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event comes that would show the hole: the channel's coming back does."""
    replica = followed.sessions.storage.ownership.replica
    await chat.running("Hello?", "This")
    await followed.reader.next(Delta)
    await store.hset(chat.keys.conversation, "watchers", "nobody")
    chat.engine.step(20)
    await chat.wait_idle()
    await store.hset(chat.keys.conversation, "watchers", replica)
    assert followed.reader.of(Done) == []
    await store.client_kill_filter(_type="pubsub")
    await followed.reader.next(Done)
    assert continuous(followed.reader.events)


async def test_a_hole_that_nothing_fills_is_a_gap(chat: Chat, followed: Chat, store: Redis) -> None:
    await chat.running("Hello?", "This")
    await followed.reader.next(Delta)
    await store.hset(chat.keys.conversation, "watchers", "nobody")
    await chat.step()
    await store.xtrim(chat.keys.journal, maxlen=0, approximate=False)
    await store.hset(chat.keys.conversation, "watchers", followed.sessions.storage.ownership.replica)
    await chat.step()
    snapshot = await followed.reader.next(Snapshot)
    assert followed.reader.of(Gap)[0].min_seq == chat.reader.of(Delta)[-1].seq
    chat.engine.step(20)
    await followed.reader.next(Done)
    assert continuous(followed.reader.events[followed.reader.events.index(snapshot) + 1 :])


async def test_a_store_that_lost_events_begins_another_epoch(
    chat: Chat, followed: Chat, reader: Recorder, store: Redis
) -> None:
    """As after a failover to a server that was behind: nobody takes new events for those that they saw."""
    kept = [await store.dump(key) for key in chat.keys.pair()]
    await chat.exchange("Hello?", "Hello.")
    await followed.reader.next(Done)
    for key, dump in zip(chat.keys.pair(), kept, strict=True):
        await store.restore(key, 0, dump or b"", replace=True)
    await chat.exchange("And now?", "Now.")
    for one in (reader, followed.reader):
        gap = await one.next(Gap)
        assert gap.epoch != reader.of(Accepted)[0].epoch
        await one.until(partial(has_seen, one, reader.of(Done)[-1].seq))
    assert await chat.texts() == ["Hi!", "Hi.", "And now?", "Now."]


async def test_a_duplicate_of_an_ended_turn_attaches_to_what_happens_elsewhere(
    chat: Chat, other: Chat
) -> None:
    """Whoever sends is attached, whatever the answer is."""
    done = await chat.exchange("Hi!", "Hi.", client_msg_id="one")
    await other.send("Hi!", client_msg_id="one")
    await chat.take_back(done.turn_id)
    assert (await other.reader.next(Removed)).turn_id == done.turn_id
    await chat.exchange("And now?", "Now.")
    assert (await other.reader.next(Accepted, count=2)).content == "And now?"


async def cut(chat: Chat) -> Done:
    """A reply that is stopped behind its second word."""
    chat.engine.script("One two three four")
    accepted = await chat.running("Count!", "One two")
    chat.cancel(accepted.turn_id)
    done = await chat.reader.next(Done, count=len(chat.reader.of(Done)) + 1)
    await chat.wait_idle()
    return done


async def test_a_reply_that_was_cut_here_goes_on_on_the_other_replica(chat: Chat, other: Chat) -> None:
    first = await cut(chat)
    other.engine.script(" three four")
    going = await other.running("", " three", place=Continue(first.message_id), client_msg_id="more")
    late = Recorder()
    page = await chat.history(late)
    assert (page.messages[1].content, page.messages[1].status) == ("One two three", "running")
    assert page.messages[1].turn_id == going.turn_id
    gapped = Recorder()
    await chat.resume(gapped, 1, epoch="another")
    assert gapped.of(Snapshot)[0].text == "One two three"
    again = Recorder()
    await chat.send("", place=Continue(first.message_id), client_msg_id="more", reader=again)
    assert [(delta.off, delta.text) for delta in again.of(Delta)] == [(7, " three")]
    other.engine.step(3)
    done = await chat.reader.next(Done, count=2)
    assert (done.message_id, done.text_sha256) == (first.message_id, digest("One two three four"))
    assert continuous(chat.reader.events)
    for each in (late, gapped, again):
        chat.leave(each)


async def test_what_the_other_replica_added_is_taken_back_here(chat: Chat, followed: Chat) -> None:
    first = await cut(chat)
    chat.engine.script(" three four")
    going = await chat.running("", " three four", place=Continue(first.message_id))
    done = await chat.finish(going.turn_id)
    await followed.reader.until(lambda: followed.reader.of(Done)[-1:] == [done])
    await chat.wait_idle()
    await followed.take_back(done.turn_id)
    for each in (chat.reader, followed.reader):
        page = await each.next(HistoryPage)
        assert (await each.next(Removed)).turn_id == done.turn_id
        assert [message.content for message in page.messages][-1] == "One two"


@pytest.mark.parametrize("shown", ["", " three"])
async def test_a_reply_that_goes_on_where_its_replica_dies_keeps_what_came(
    chat: Chat, other: Chat, reader: Recorder, shown: str
) -> None:
    first = await cut(chat)
    before = (await chat.history()).messages
    chat.engine.script(" three four")
    going = await chat.running("", shown, place=Continue(first.message_id), client_msg_id="more")
    await chat.lose_lease()
    assert await other.reap() == 1
    assert (other.sessions.statistics().reaped, chat.sessions.statistics().reaped) == (1, 0)
    chat.engine.step()
    done = await reader.next(Done, count=2)
    await chat.wait_idle()
    text = f"One two{shown}"
    assert (done.turn_id, done.reason) == (going.turn_id, Reason.INTERRUPTED)
    assert (done.chars, done.text_sha256) == (len(text), digest(text))
    after = (await other.history()).messages
    assert after[1].content == text
    if not shown:
        assert after == before
    repeated = await other.send("", place=Continue(first.message_id), client_msg_id="more")
    assert (repeated.duplicate, repeated.turn_id) == (True, going.turn_id)
    other.engine.script(" three four"[len(shown) :])
    again = await other.send("", place=Continue(first.message_id), client_msg_id="and more")
    await eventually(lambda: len(other.engine.requests) == 1)
    await other.finish(again.turn_id)
    assert (await other.messages())[1] == ("assistant", "One two three four")
    page = await other.sessions.conversations(chat.owner, limit=1, before=None)
    assert page.conversations[0].messages == 2
