"""A reader comes back: what it missed it is told once and in order, or that there is a gap; then it follows."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from sessions.errors import NotFound
from sessions.events import Accepted, Delta, Done, Event, Gap, Removed, Resumed, Snapshot, Status
from sessions.records import Owner, digest
from sessions.service import Sessions
from sessions.store.codec import Keys
from sessions.store.history import Since
from sessions.store.journal import READ_BYTES
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder, continuous, seqs


def last_seq(reader: Recorder) -> int:
    return seqs(reader.events)[-1][1]


async def back(chat: Chat, gone: Recorder) -> Recorder:
    """The reader that left, on a new connection."""
    reader = Recorder()
    await chat.resume(reader, last_seq(gone))
    return reader


def all_of(gone: Recorder, reader: Recorder) -> list[Event]:
    """What was told before and after the break."""
    return [*gone.events, *reader.events]


def text(events: list[Event], turn_id: str) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.turn_id == turn_id)


@pytest.fixture
async def witness(chat: Chat) -> Recorder:
    """Another connection, for which the turns go on."""
    await chat.exchange("Hi!", "Hi.")
    witness = Recorder()
    await chat.history(witness)
    return witness


@pytest.fixture
def slow(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Until it is set the store does not say what was missed, while it accepts messages."""
    since, slow = chat.sessions.storage.history.since, asyncio.Event()

    async def slowly(keys: Keys, after_seq: int, *, most_bytes: int | None = None) -> Since | None:
        await slow.wait()
        return await since(keys, after_seq, most_bytes=most_bytes)

    monkeypatch.setattr(chat.sessions.storage.history, "since", slowly)
    return slow


async def test_what_is_sent_behind_a_resume_is_told_behind_it(
    chat: Chat, reader: Recorder, witness: Recorder, slow: asyncio.Event
) -> None:
    """Another connection that sends the same is answered, too."""
    accepted = await chat.running("Hello?", "This")
    chat.leave()
    returned, second = Recorder(), Recorder()
    resuming = asyncio.create_task(chat.resume(returned, accepted.seq, epoch=accepted.epoch))
    await asyncio.sleep(0)
    sending = [
        chat.begin_send("And now?", client_msg_id="two", on_busy="interrupt", reader=connection)
        for connection in (returned, second)
    ]
    await chat.exchange("Hi!", "Hi.", conversation_id="another", reader=witness)
    assert returned.events == []
    slow.set()
    await resuming
    assert [await send for send in sending] == [None, None]
    assert (await second.next(Accepted)).duplicate
    assert (await returned.next(Accepted)).client_msg_id == "two"
    assert isinstance(returned.events[0], Resumed)
    assert continuous(returned.events)


async def test_whole_turns_and_removals_are_told_again(chat: Chat, witness: Recorder) -> None:
    """With what was asked; and nothing missed is told as nothing."""
    chat.leave()
    await chat.exchange("Hello?", "Hello.", reader=witness)
    await chat.exchange("And now?", "Now.", reader=witness)
    done = await chat.exchange("And then?", "Then.", reader=witness)
    await chat.take_back(done.turn_id)
    returned = await back(chat, chat.reader)
    assert [event.content for event in returned.of(Accepted)] == ["Hello?", "And now?", "And then?"]
    assert returned.of(Resumed)[0].live is None
    assert returned.of(Removed)[0].turn_id == done.turn_id
    assert continuous(all_of(chat.reader, returned))
    assert len(returned.of(Done)) == 3
    again = await back(chat, returned)
    assert [type(event) for event in again.events] == [Resumed]
    assert again.of(Resumed)[0].replayed == 0


async def test_a_replay_of_a_cancelled_reply_ends_at_the_cut(chat: Chat, witness: Recorder) -> None:
    """What the cancel took back is not told; the end covers its seqs. One who saw more learns where the cut is."""
    saw_more = Recorder()
    await chat.history(saw_more)
    chat.leave()
    accepted = await chat.running("Hello?", "This reply was", reader=witness)
    chat.leave(saw_more)
    chat.cancel(seen_off=7)
    await witness.next(Done)
    await chat.wait_idle()
    returned = await back(chat, chat.reader)
    done = returned.of(Done)[0]
    assert returned.text(accepted.turn_id) == "This re"
    assert (done.chars, done.first_seq) == (7, done.seq - 1)
    assert continuous(all_of(chat.reader, returned))
    events = all_of(saw_more, await back(chat, saw_more))
    assert continuous(events)
    assert digest(text(events, accepted.turn_id)[: done.chars]) == done.text_sha256


async def test_a_wait_without_text_is_told_again(chat: Chat, reader: Recorder, witness: Recorder) -> None:
    chat.engine.prefill_tokens = 1
    accepted = await chat.running("Hello?")
    await chat.step()
    chat.leave()
    returned = await back(chat, reader)
    assert [type(event) for event in returned.events] == [Resumed, Status]
    assert returned.of(Resumed)[0].live == accepted.turn_id
    chat.cancel()
    await returned.next(Done)


async def test_a_resume_just_behind_a_cancel_waits_for_the_end(chat: Chat, witness: Recorder) -> None:
    """Else it would be told text that the cut took back."""
    chat.engine.hold_cancels = True
    accepted = await chat.running("Hello?", "This reply")
    chat.leave()
    chat.cancel(seen_off=4)
    returned = Recorder()
    resuming = asyncio.create_task(chat.resume(returned, accepted.seq))
    await asyncio.wait([resuming], timeout=0.02)
    assert not resuming.done()
    chat.engine.step()
    await resuming
    assert returned.text(accepted.turn_id) == "This"
    assert returned.of(Resumed)[0].live is None


async def test_a_delta_that_is_journalled_but_not_published_comes_once(chat: Chat, witness: Recorder) -> None:
    """Whoever comes back between the two finds it in the journal, and must not be given it again."""
    accepted = await chat.running("Hello?", "This")
    chat.leave()
    returned = [Recorder() for _ in range(30)]
    chat.engine.step()
    resuming = []
    for one in returned:
        resuming.append(asyncio.create_task(chat.resume(one, accepted.seq)))
        await asyncio.sleep(0)
    await asyncio.gather(*resuming)
    chat.engine.step(20)
    for one in returned:
        done = await one.next(Done)
        assert continuous(one.events)
        assert digest(one.text(accepted.turn_id)) == done.text_sha256
        chat.leave(one)


async def test_a_turn_that_begins_meanwhile_comes_once(chat: Chat, reader: Recorder) -> None:
    await chat.exchange("Hi!", "Hi.")
    seen = last_seq(reader)
    returned = [Recorder() for _ in range(30)]
    sending = chat.begin_send("Hello?")
    resuming = []
    for one in returned:
        resuming.append(asyncio.create_task(chat.resume(one, seen)))
        for _ in range(3):
            await asyncio.sleep(0)
    assert await sending is None
    await asyncio.gather(*resuming)
    await eventually(lambda: len(chat.engine.requests) == 2)
    chat.engine.step(20)
    for one in [*returned, reader]:
        await one.next(Done, count=2 if one is reader else 1)
        assert continuous(one.events)
        assert len(one.of(Accepted)) == (2 if one is reader else 1)
        chat.leave(one)
    assert [event.ref for event in reader.of(Accepted)] == ["ref", "ref"]


async def test_a_reader_that_leaves_while_it_comes_back_is_not_attached(chat: Chat, store: Redis) -> None:
    await chat.exchange("Hello?")
    gone = Recorder()
    resuming = asyncio.create_task(chat.resume(gone, 0))
    await asyncio.sleep(0)
    chat.leave(gone)
    chat.leave()
    await resuming
    await eventually(lambda: chat.sessions.statistics().conversations == 0)
    assert await store.hget(chat.keys.conversation, "watchers") == b""


async def test_a_journal_that_was_trimmed_within_a_reply_is_a_gap_there_alone(
    chat: Chat, reader: Recorder, store: Redis
) -> None:
    await chat.exchange("Hello?")
    await chat.exchange("And now?")
    await store.xtrim(chat.keys.journal, minid="4-0", approximate=False)
    kept = Recorder()
    await chat.resume(kept, 3)
    assert [event.seq for event in kept.of(Accepted)] == [4]


async def test_what_is_too_long_to_tell_is_not_fetched_from_the_store(chat: Chat, store: Redis) -> None:
    """Nor read there beyond the bound: a resume from the oldest seq costs no more, however long the conversation is."""
    await chat.exchange("Hello?")
    await _lengthen_beginning(store, chat.keys.journal, rows=1000)
    calls, sent = await _xrange_calls(store), await _net_output(store)
    lost = Recorder()
    await chat.resume(lost, 0)
    assert [type(event) for event in lost.events] == [Gap, Snapshot]
    assert await _net_output(store) - sent < 64 * 1024
    assert await _xrange_calls(store) - calls < 2 * READ_BYTES // 4096 // 16


async def _lengthen_beginning(store: Redis, journal: str, *, rows: int) -> None:
    """Rows of 4 KB stand before the first event from then on; whoever decodes one of them fails."""
    reported = await store.xrange(journal)
    writes = store.pipeline(transaction=False)
    writes.delete(journal)
    for number in range(1, rows + 1):
        writes.xadd(journal, {"event": "x" * 4096}, id=f"0-{number}")
    for name, fields in reported:
        writes.xadd(journal, fields, id=name)
    await writes.execute()


async def _net_output(store: Redis) -> int:
    return int((await store.info("stats"))["total_net_output_bytes"])


async def _xrange_calls(store: Redis) -> int:
    return int((await store.info("commandstats"))["cmdstat_xrange"]["calls"])


async def test_someone_elses_conversation_is_not_found_nor_one_that_is_not_there(
    chat: Chat, sessions: Sessions, store: Redis
) -> None:
    await chat.exchange("Hello?")
    stranger = Chat(sessions, chat.engine, Owner("anonymous", "mallory"), Recorder())
    with pytest.raises(NotFound):
        await stranger.resume(stranger.reader, 0, epoch="e")
    assert sessions.statistics().conversations == 1
    assert await store.exists(stranger.keys.conversation) == 0
