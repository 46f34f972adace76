"""The journal expires some time after the last end; whoever comes back later is told the turns all the same, each text once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from redis.asyncio import Redis

from sessions.events import Accepted, Delta, Done, Event, Gap, Journalled, Removed, Snapshot
from sessions.records import digest
from sessions.store.journal import READ_BYTES, RESUME_WINDOW_S
from sessions.turn.message_request import Edit, Regenerate
from tests.bench.conversations import cost
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder


async def expired(store: Redis, chat: Chat) -> None:
    """The resume window is over: it began with the last end."""
    await chat.wait_idle()
    left_ms = await store.pttl(chat.keys.journal)
    assert 0 < left_ms <= RESUME_WINDOW_S * 1000
    await store.unlink(chat.keys.journal)


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


async def test_each_event_is_told_once_and_in_order_with_and_without_the_journal(
    chat: Chat, reader: Recorder, store: Redis
) -> None:
    """From every seq, the oldest one too; a reader in the midst of a text is told of a gap and the whole history."""
    await varied_history(chat, reader)
    last = reader.of(Done)[-1].seq
    before = [await replayed(chat, seq) for seq in range(last + 1)]
    history = await chat.messages()
    await expired(store, chat)
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


async def test_what_goes_on_behind_an_expired_journal_is_told_behind_it(chat: Chat, store: Redis) -> None:
    """While a turn runs or waits, nothing of the journal expires."""
    await chat.exchange("Hello?", "One two three.")
    await expired(store, chat)
    await chat.running("And now?", "This reply")
    assert await store.pttl(chat.keys.journal) > RESUME_WINDOW_S * 1000
    events = await replayed(chat, 0)
    assert whole(events, 0)
    assert list(texts(events).values()) == ["One two three.", "This reply"]
    chat.engine.step(20)
    await chat.wait_idle()
    assert list(texts(await replayed(chat, 0)).values()) == ["One two three.", chat.engine._reply]


async def test_what_was_missed_is_bounded(chat: Chat, store: Redis) -> None:
    """Whoever missed more than may wait for a connection is told of a gap; what is read for that is bounded too."""
    chat.engine._facts = msgspec.structs.replace(chat.engine._facts, context_tokens=1_000)
    chat.engine._life.loaded(chat.engine._facts)
    for _ in range(8):
        await chat.exchange("Hello?" * 20_000, "Well." * 20_000)
    await expired(store, chat)
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
