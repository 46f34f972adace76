"""Ended turns leave the journal when their window is over; whoever comes back is told them all the same, each text once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import msgspec
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from sessions.events import Accepted, Delta, Done, Event, Gap, Journalled, Removed, Snapshot
from sessions.records import digest
from sessions.store.client import SCHEDULE, TAKE_DUE, run_script
from sessions.store.journal import LISTS, READ_BYTES, Compaction, _list
from sessions.turn.message_request import Edit, Regenerate
from tests.bench.conversations import cost
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder


async def due(store: Redis, chat: Chat) -> Compaction:
    """Compacts as if every window were over."""
    await chat.wait_idle()
    for name in await store.keys("ms:compaction:*"):
        for conversation in await store.zrange(name, 0, -1):
            await store.zadd(name, {conversation: 1})
    return Compaction(store, ttl_s=60, window_s=0)


async def compacted(store: Redis, chat: Chat) -> None:
    assert await (await due(store, chat)).compact() == 1


async def replayed(chat: Chat, seq: int) -> list[Event]:
    """What a reader that came so far is told."""
    reader = Recorder()
    await chat.resume(reader, seq)
    chat.leave(reader)
    return reader.events[1:] if not reader.of(Gap) else reader.events


def bare(events: Sequence[Event]) -> list[Event]:
    """All but the texts, without what depends on where a reader came from."""
    kept = [event for event in events if isinstance(event, Accepted | Done | Removed)]
    return [
        msgspec.structs.replace(
            event, first_seq=None, **({"queue_position": None} if isinstance(event, Accepted) else {})
        )
        for event in kept
    ]


def texts(events: Sequence[Event]) -> dict[str, str]:
    """What is told of each turn's text, cut to what is kept."""
    found: dict[str, str] = {}
    for event in events:
        if isinstance(event, Delta):
            found[event.turn_id] = found.get(event.turn_id, "") + event.text
    return found


def whole(events: Sequence[Event], seq: int) -> bool:
    """Whether each event is behind the one before, the first behind `seq`."""
    for event in events:
        assert isinstance(event, Journalled)
        if (event.first_seq or event.seq) != seq + 1:
            return False
        seq = event.seq
    return True


async def varied_history(chat: Chat, reader: Recorder) -> None:
    """One of each: whole, empty, cut, taken back at once and later, queued, cancelled in the queue, edited, made anew."""
    first = await chat.exchange("Hello?", "One two three.", client_msg_id="one")
    await chat.exchange("Nothing?", "")
    cut = await chat.running("Cut me.", "This reply was", client_msg_id="cut")
    reader.set_sent(cut.turn_id, 8)
    chat.cancel()
    await chat.wait_idle()
    taken = await chat.running("Take me back.", "This reply")
    chat.cancel(taken.turn_id, rollback=True)
    await chat.wait_idle()
    later = await chat.exchange("Take me back later.", "So be it.")
    await chat.take_back(later.turn_id)
    await chat.running("Head?", "This reply")
    queued = await chat.enqueue("Waits.")
    leaves = await chat.enqueue("Leaves.")
    await chat.step()
    chat.cancel(leaves.turn_id)
    await reader.until(lambda: any(done.turn_id == leaves.turn_id for done in reader.of(Done)))
    await chat.step()
    requests = len(chat.engine.requests)
    chat.engine.step(20)
    await eventually(lambda: len(chat.engine.requests) > requests)
    chat.engine.step(20)
    await reader.until(lambda: any(done.turn_id == queued.turn_id for done in reader.of(Done)))
    await chat.wait_idle()
    await chat.exchange("Hello again?", "Edited.", place=Edit(reader.of(Accepted)[0].message_id))
    await chat.exchange("", "Made anew.", place=Regenerate(first.message_id))
    await chat.wait_idle()


async def test_each_event_is_told_once_and_in_order_before_and_behind_a_compaction(
    chat: Chat, reader: Recorder, store: Redis
) -> None:
    """From every seq, the oldest one too; a reader in the midst of a text is told of a gap and the whole history."""
    await varied_history(chat, reader)
    last = reader.of(Done)[-1].seq
    before = [await replayed(chat, seq) for seq in range(last + 1)]
    history = await chat.messages()
    await compacted(store, chat)
    assert await store.exists(chat.keys.journal) == 0
    gaps = 0
    for seq, expected in enumerate(before):
        events = await replayed(chat, seq)
        if events and isinstance(events[0], Gap):
            assert isinstance(events[1], Snapshot)
            gaps += 1
            continue
        assert whole(events, seq)
        removed = {
            event.turn_id
            for event in before[0]
            if isinstance(event, Removed) or (isinstance(event, Done) and event.removed)
        }
        assert [event for event in bare(events) if event.turn_id not in removed] == [
            event for event in bare(expected) if event.turn_id not in removed
        ]
        assert [event.seq for event in bare(events)] == [event.seq for event in bare(expected)]
        kept = {turn: text for turn, text in texts(expected).items() if turn not in removed}
        assert texts(events) == kept
        for done in (event for event in events if isinstance(event, Done) and seq == 0):
            assert digest(texts(events).get(done.turn_id, "")) == done.text_sha256
    assert 0 < gaps < last / 2
    assert not isinstance((await replayed(chat, 0))[0], Gap)
    assert await chat.messages() == history


async def test_what_goes_on_behind_a_compaction_is_told_behind_it(chat: Chat, store: Redis) -> None:
    await chat.exchange("Hello?", "One two three.")
    await chat.running("And now?", "This reply")
    for name in await store.keys("ms:compaction:*"):
        await store.zadd(name, {chat.keys.conversation: 1})
    await Compaction(store, ttl_s=60, window_s=0).compact()
    events = await replayed(chat, 0)
    assert whole(events, 0)
    assert list(texts(events).values()) == ["One two three.", "This reply"]
    chat.engine.step(20)
    await chat.wait_idle()
    assert list(texts(await replayed(chat, 0)).values()) == ["One two three.", chat.engine._reply]


async def test_a_window_is_waited_for(chat: Chat, store: Redis) -> None:
    await chat.exchange("Hello?", "One two three.")
    compaction = await due(store, chat)
    compaction._window_ms = 60_000
    assert await compaction.compact() == 1  # looked at, and left
    assert await store.xlen(chat.keys.journal) > 3
    (name,) = await store.keys("ms:compaction:*")
    ((_, again),) = await store.zrange(name, 0, -1, withscores=True)
    seconds, _ = await store.time()
    assert 0 < again / 1000 - seconds <= 61


async def test_what_a_dead_replica_looked_at_is_looked_at_by_another(chat: Chat, store: Redis) -> None:
    """A turn that ends while somebody looks is listed for later."""
    await chat.exchange("Hello?", "One two three.")
    dying = await due(store, chat)
    (name,) = await store.keys("ms:compaction:*")
    _, taken = await run_script(store, TAKE_DUE, [name], [10, 60_000])
    assert taken.decode() == chat.keys.conversation
    assert await dying.compact() == 0  # somebody looks at it
    await store.zadd(name, {chat.keys.conversation: 1})  # the lease is over
    assert await dying.compact() == 1
    assert await store.exists(chat.keys.journal, name) == 0
    await chat.exchange("And now?", "Four.")
    compaction = await due(store, chat)
    lease, taken = await run_script(store, TAKE_DUE, [name], [10, 60_000])
    await chat.exchange("And then?", "Five.")
    await chat.wait_idle()
    await run_script(store, SCHEDULE, [name], [taken, 0, 60_000, lease])
    assert await store.zscore(name, chat.keys.conversation) is not None
    assert await compaction.compact() == 0  # not before its time


async def test_what_was_missed_is_bounded(chat: Chat, store: Redis) -> None:
    """Whoever missed more than may wait for a connection is told of a gap; what is read for that is bounded too."""
    chat.engine._facts = msgspec.structs.replace(chat.engine._facts, context_tokens=1_000)
    chat.engine._life.loaded(chat.engine._facts)
    for _ in range(8):
        await chat.exchange("Hello?" * 20_000, "Well." * 20_000)
    await compacted(store, chat)
    gap, snapshot = await replayed(chat, 0)
    assert isinstance(gap, Gap)
    assert isinstance(snapshot, Snapshot)
    since = await chat.sessions.storage.history.since(chat.keys, 0)
    assert since is not None
    assert since.first > 1
    assert sum(len(event.text) for event in since.events if isinstance(event, Delta)) < READ_BYTES


async def test_a_text_stands_once(store: Redis) -> None:
    """At most 1.3 times the text and a kilobyte an exchange, of replies of 300 tokens."""
    found = await cost(store, exchanges=4, tokens=300)
    assert found.after <= found.bound, str(found)
    assert found.before > 10 * found.after


async def test_a_spoiled_list_keeps_no_other_from_being_compacted(chat: Chat, store: Redis) -> None:
    await chat.exchange("Hello?", "Hello.")
    compaction = await due(store, chat)
    (listed,) = await store.keys("ms:compaction:*")
    for number in range(LISTS):
        if not await store.exists(name := _list(number)):
            await store.set(name, "no list")
    assert await store.type(listed) == b"zset"
    assert await compaction.compact() == 1


@asynccontextmanager
async def spoiled(store: Redis) -> AsyncIterator[None]:
    """The lists hold something else."""
    await store.mset({_list(number): "not a list" for number in range(LISTS)})
    yield
    await store.delete(*map(_list, range(LISTS)))


@asynccontextmanager
async def withheld(store: Redis) -> AsyncIterator[None]:
    """The lists can't be written; all else can."""
    await store.execute_command("ACL", "SETUSER", "default", "resetkeys", "~ms:[^c]*", "~ms:conv*")  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        await store.execute_command("ACL", "SETUSER", "default", "allkeys")  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("troubled", [spoiled, withheld])
async def test_a_list_of_what_is_due_that_takes_nothing_is_no_fault_of_a_journal(
    troubled: Callable[[Redis], AbstractAsyncContextManager[None]], chat: Chat, store: Redis
) -> None:
    """The end is saved and told as saved, and its journal goes on as it stands; the next turn lists the conversation."""
    async with troubled(store):
        with capture_logs() as logged:
            done = await chat.exchange("Hello?", "One two three.")
            await chat.wait_idle()
        assert done.saved
        events = [one["event"] for one in logged]
        assert "compaction not scheduled" in events
        assert "journal restarted" not in events
    await chat.exchange("Again?", "Yes.")
    await compacted(store, chat)
