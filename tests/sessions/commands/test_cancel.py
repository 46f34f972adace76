"""A cancel works wherever a turn is: the history ends where the reader's eyes did, or, by `mode:rollback`, before the exchange."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from sessions.errors import Busy, Conflict
from sessions.events import Accepted, CancelFacts, Cause, Delta, Done, Reason, Removed
from sessions.records import Meta, Owner, digest
from sessions.store.codec import Keys
from sessions.turn.turn import CONFIRM_S, Cancelled
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder, continuous


def facts(done: Done) -> CancelFacts:
    assert done.cancel is not None
    return done.cancel


async def test_between_tokens_what_was_handed_is_kept(chat: Chat, reader: Recorder) -> None:
    accepted = await chat.running("Hello?", "This reply was")
    reader.set_sent(accepted.turn_id, len("This reply"))
    assert chat.cancel() == Cancelled(accepted.turn_id, already=False)
    done = await reader.next(Done)
    assert (done.reason, done.chars, done.text_sha256) == (Reason.CANCELLED, 10, digest("This reply"))
    assert (facts(done).cause, facts(done).steps_after) == (Cause.CLIENT, 0)
    assert reader.withdrawn == {accepted.turn_id: 10}
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "This reply")]


@pytest.mark.parametrize("rollback", [False, True])
async def test_on_arrival_before_it_is_accepted(chat: Chat, *, rollback: bool) -> None:
    """A cancel right behind its send finds the turn; the engine never hears of it."""
    sending = chat.begin_send("Hello?")
    done = await chat.stop(rollback=rollback)
    assert await sending is None
    assert (done.reason, done.chars, done.usage.prompt_tokens) == (Reason.CANCELLED, 0, 0)
    assert (facts(done).steps_after, chat.engine.requests) == (0, [])
    assert await chat.messages() == ([] if rollback else [("user", "Hello?"), ("assistant", "")])


async def test_by_its_message_before_it_has_a_turn_and_no_other_turn_ends(chat: Chat) -> None:
    """Whoever stops what was just sent does not stop the reply that another device waits for."""
    first = await chat.running("One?", "This")
    sending = chat.begin_send("Two?", on_busy="enqueue", client_msg_id="two")
    assert not chat.cancel(client_msg_id="two", seen_off=0).already
    assert chat.cancel(client_msg_id="unheard") == Cancelled(None, already=True)
    ended = await chat.finish(first.turn_id)
    assert await sending is None
    await chat.wait_idle()
    assert ended.reason is Reason.STOP
    assert [done.reason for done in chat.reader.of(Done)].count(Reason.CANCELLED) == 1
    assert (await chat.texts())[2:] == ["Two?", ""]
    assert len(chat.engine.requests) == 1


async def test_behind_a_turn_whose_end_is_decided_the_answer_names_the_next_one(chat: Chat) -> None:
    """By conversation a cancel takes the running turn and the queue."""
    chat.engine.hold_cancels = True
    first = await chat.running("Hello?", "This")
    waiting = chat.begin_send("No, wait!", on_busy="interrupt")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    stopped = chat.cancel()
    chat.engine.step()
    assert await waiting is None
    done = await chat.reader.next(Done, count=2)
    assert stopped == Cancelled(chat.reader.of(Accepted)[1].turn_id, already=False)
    assert stopped.turn_id != first.turn_id
    assert (facts(done).cause, done.chars, len(chat.engine.requests)) == (Cause.CLIENT, 0, 1)
    assert continuous(chat.reader.events)


async def test_a_queued_turn_that_is_cancelled_does_not_wait_for_an_engine_that_restarts(chat: Chat) -> None:
    """Its end is told though no tokenizer can count its prompt, now or later."""
    chat.engine.die(revive=False)
    sending = chat.begin_send("Hello?")
    await chat.wait_for_engine()
    chat.cancel()
    assert await sending is None
    done = await chat.reader.next(Done)
    assert (done.reason, done.chars) == (Reason.CANCELLED, 0)


async def test_an_engine_that_never_confirms_is_not_waited_for(chat: Chat) -> None:
    """What it had said of the prompt is told all the same."""
    chat.engine.hold_cancels, chat.engine.cached_tokens = True, 3
    await chat.running("Hello?", "This")
    chat.cancel()
    done = await chat.reader.next(Done)
    assert (facts(done).steps_after, done.chars) == (None, 4)
    assert facts(done).latency_ms >= CONFIRM_S * 1000 - 100
    usage = done.usage
    assert (usage.generated_tokens, usage.prompt_tokens, usage.cached_tokens) == (1, 5, 3)


async def test_twice_and_by_somebody_else(chat: Chat, reader: Recorder) -> None:
    accepted = await chat.running("Hello?", "This")
    mallory = Chat(chat.sessions, chat.engine, Owner("anonymous", "mallory"), Recorder())
    assert mallory.cancel(accepted.turn_id) == Cancelled(accepted.turn_id, already=True)
    assert mallory.cancel() == Cancelled(None, already=True)
    assert not chat.cancel(seen_off=2).already
    assert chat.cancel(seen_off=1) == Cancelled(accepted.turn_id, already=True)
    assert (await reader.next(Done)).chars == 2
    await chat.wait_idle()
    assert chat.cancel(accepted.turn_id) == Cancelled(accepted.turn_id, already=True)
    assert len(reader.of(Done)) == 1


async def test_what_came_too_late_to_be_shown_is_covered_by_the_end(chat: Chat) -> None:
    """A delta that the store was still taking has its seq in the journal; nobody is shown it, nobody misses it."""
    await chat.running("Hello?", "This")
    chat.engine.step()
    await eventually(lambda: chat.live_conversation.known.seq == 3)
    chat.cancel()
    done = await chat.reader.next(Done)
    assert [delta.text for delta in chat.reader.of(Delta)] == ["This"]
    assert (done.first_seq, done.seq, done.chars) == (3, 4, 4)
    assert continuous(chat.reader.events)
    journal = await chat.sessions.storage.history.journal(chat.keys, after_seq=0)
    assert [event.seq for event in journal] == [1, 2, 3, 4]
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "This")]


async def test_an_ended_exchange_is_removed_and_all_are_told(chat: Chat, reader: Recorder) -> None:
    first = await chat.exchange("Hello?", "Hello.")
    done = await chat.exchange("And now?")
    second = Recorder()
    await chat.history(second)
    await chat.take_back(done.turn_id)
    assert second.of(Removed) == reader.of(Removed)
    assert (second.of(Removed)[0].turn_id, second.of(Removed)[0].seq) == (done.turn_id, done.seq + 1)
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "Hello.")]
    await chat.take_back(first.turn_id)
    assert await chat.messages() == []
    await chat.exchange("Hello again?", "Hello.")
    assert await chat.messages() == [("user", "Hello again?"), ("assistant", "Hello.")]
    assert continuous(reader.events)


async def test_an_exchange_that_was_followed_stays_also_under_a_running_reply(chat: Chat) -> None:
    done = await chat.exchange("Hello?")
    await chat.running("And now?", "This")
    with pytest.raises(Conflict):
        await chat.take_back(done.turn_id)
    await chat.stop()
    with pytest.raises(Conflict):
        await chat.take_back(done.turn_id)


async def test_what_is_not_there_is_no_error(chat: Chat, reader: Recorder) -> None:
    await chat.take_back("turn_x")
    done = await chat.exchange("Hello?")
    for _ in range(2):
        await chat.take_back(done.turn_id)
    await chat.take_back("turn_x")
    assert len(reader.of(Removed)) == 1


async def test_one_whose_end_is_just_being_written_is_removed_after_it(chat: Chat) -> None:
    """A rollback behind a cancel that kept the text is not forgotten."""
    chat.engine.hold_cancels = True
    accepted = await chat.running("Hello?", "This")
    chat.cancel()
    assert chat.cancel(accepted.turn_id, rollback=True).already
    taking = chat.take_back(accepted.turn_id)
    chat.engine.step()
    await taking
    assert [type(event) for event in chat.reader.events[-2:]] == [Done, Removed]
    assert await chat.messages() == []


async def test_a_removal_goes_on_when_its_sender_leaves(chat: Chat, reader: Recorder) -> None:
    done = await chat.exchange("Hello?")
    removal = asyncio.ensure_future(chat.take_back(done.turn_id))
    await eventually(chat.live_conversation.write_lock.locked)
    removal.cancel()
    assert (await reader.next(Removed)).turn_id == done.turn_id


async def test_a_conversation_that_changes_elsewhere_meanwhile_is_busy(
    chat: Chat, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write another replica was faster."""
    done = await chat.exchange("Hello?")
    looked = chat.sessions.storage.history.load

    async def changed_behind(keys: Keys) -> Meta | None:
        meta = await looked(keys)
        await store.hincrby(keys.conversation, "seq", 1)
        return meta

    monkeypatch.setattr(chat.sessions.storage.history, "load", changed_behind)
    with pytest.raises(Busy):
        await chat.take_back(done.turn_id)
