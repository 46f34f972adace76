"""A cancel works wherever a turn is, and the history ends where the reader's eyes did."""

from __future__ import annotations

import pytest

from engine.scripted import ScriptedEngine
from sessions.events import Accepted, CancelFacts, Cause, Delta, Done, Reason
from sessions.records import Owner, digest
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


async def test_by_its_message_before_it_has_a_turn_and_no_other_turn_ends(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    """Whoever stops what was just sent does not stop the reply that another device waits for."""
    first = await chat.running("One?", "This")
    sending = chat.begin_send("Two?", on_busy="enqueue", client_msg_id="two")
    assert not chat.cancel(client_msg_id="two", seen_off=0).already
    assert chat.cancel(client_msg_id="unheard") == Cancelled(None, already=True)
    ended = await chat.finish(first.turn_id)
    assert await sending is None
    await chat.wait_idle()
    assert ended.reason is Reason.STOP
    assert [done.reason for done in reader.of(Done)].count(Reason.CANCELLED) == 1
    assert [content for _, content in await chat.messages()][2:] == ["Two?", ""]
    assert len(engine.requests) == 1


async def test_behind_a_turn_whose_end_is_decided_the_answer_names_the_next_one(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    """By conversation a cancel takes the running turn and the queue."""
    engine.hold_cancels = True
    first = await chat.running("Hello?", "This")
    waiting = chat.begin_send("No, wait!", on_busy="interrupt")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    stopped = chat.cancel()
    engine.step()
    assert await waiting is None
    done = await reader.next(Done, count=2)
    assert stopped == Cancelled(reader.of(Accepted)[1].turn_id, already=False)
    assert stopped.turn_id != first.turn_id
    assert (facts(done).cause, done.chars, len(engine.requests)) == (Cause.CLIENT, 0, 1)
    assert continuous(reader.events)


async def test_a_queued_turn_that_is_cancelled_does_not_wait_for_an_engine_that_restarts(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    """Its end is told though no tokenizer can count its prompt, now or later."""
    engine.die(revive=False)
    sending = chat.begin_send("Hello?")
    await chat.wait_for_engine()
    chat.cancel()
    assert await sending is None
    done = await reader.next(Done)
    assert (done.reason, done.chars) == (Reason.CANCELLED, 0)


async def test_an_engine_that_never_confirms_is_not_waited_for(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    """What it had said of the prompt is told all the same."""
    engine.hold_cancels, engine.cached_tokens = True, 3
    await chat.running("Hello?", "This")
    chat.cancel()
    done = await reader.next(Done)
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


async def test_what_came_too_late_to_be_shown_is_covered_by_the_end(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    """A delta that the store was still taking has its seq in the journal; nobody is shown it, nobody misses it."""
    await chat.running("Hello?", "This")
    engine.step()
    await eventually(lambda: chat.live_conversation.known.seq == 3)
    chat.cancel()
    done = await reader.next(Done)
    assert [delta.text for delta in reader.of(Delta)] == ["This"]
    assert (done.first_seq, done.seq, done.chars) == (3, 4, 4)
    assert continuous(reader.events)
    journal = await chat.sessions.parts.storage.history.journal(chat.keys, after_seq=0)
    assert [event.seq for event in journal] == [1, 2, 3, 4]
    assert await chat.messages() == [("user", "Hello?"), ("assistant", "This")]
