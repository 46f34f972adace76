"""A client that leaves stops costing GPU time, once nobody else looks on."""

from __future__ import annotations

from engine.scripted import ScriptedEngine
from sessions.events import Accepted, Cause, Done, Reason
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder


def leave(chat: Chat, reader: Recorder) -> None:
    reader.closed = True
    chat.sessions.disconnect(reader)


async def test_a_turn_goes_on_while_another_connection_looks_on(chat: Chat) -> None:
    await chat.running("Hello?", "This")
    other = Recorder()
    await chat.history(other)
    leave(chat, chat.reader)
    chat.engine.step(20)
    done = await other.next(Done)
    assert done.reason is Reason.STOP


async def test_what_the_one_who_left_was_handed_counts_at_a_later_cancel(chat: Chat) -> None:
    """The cut is the furthest offset handed to any transport, also to one that is gone."""
    accepted = await chat.running("Hello?", "This reply")
    slow = Recorder()
    await chat.history(slow)
    slow.set_sent(accepted.turn_id, 4)
    leave(chat, chat.reader)
    chat.cancel()
    done = await slow.next(Done)
    assert done.chars == len("This reply")


async def test_what_was_replayed_to_a_returning_reader_counts_at_a_later_cancel(chat: Chat) -> None:
    accepted = await chat.running("Hello?", "This reply")
    chat.reader.set_sent(accepted.turn_id, 4)
    returned = Recorder()
    await chat.resume(returned, accepted.seq)
    leave(chat, chat.reader)
    chat.cancel()
    assert (await returned.next(Done)).chars == len("This reply")


async def test_one_who_leaves_while_queued_cancels_before_the_engine_is_asked(chat: Chat) -> None:
    """Nobody may wait for a reply that nobody will read: the queued turn ends without a request."""
    chat.engine.hold_cancels = True
    first = await chat.running("Hello?", "This")
    second = Recorder()
    waiting = chat.begin_send("No, wait!", reader=second, on_busy="interrupt")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    leave(chat, chat.reader)
    leave(chat, second)
    chat.engine.step()
    assert await waiting is None
    await chat.wait_idle()
    assert len(chat.engine.requests) == 1
    await eventually(lambda: chat.sessions.statistics().conversations == 0)
    page = await chat.history(Recorder())
    assert [message.status for message in page.messages] == ["complete", "cancelled", "complete", "cancelled"]
    assert page.messages[0].turn_id == first.turn_id


async def test_one_who_left_before_the_message_was_taken_in_is_not_attached(chat: Chat) -> None:
    gone = Recorder()
    sending = chat.begin_send("Hello?", reader=gone)
    leave(chat, gone)
    assert await sending is None
    await chat.wait_idle()
    assert gone.of(Accepted) == []
    page = await chat.history(Recorder())
    assert page.messages[-1].usage is not None
    assert page.messages[-1].usage.generated_tokens == 0


async def test_the_cause_is_told_to_the_journal(chat: Chat) -> None:
    accepted = await chat.running("Hello?", "This")
    leave(chat, chat.reader)
    await chat.wait_idle()
    record = await chat.sessions.parts.storage.history.turn(chat.keys, accepted.turn_id)
    assert record is not None
    assert record.done is not None
    assert record.done.cancel is not None
    assert record.done.cancel.cause is Cause.DISCONNECT


async def test_a_stranger_that_leaves_changes_nothing(chat: Chat, engine: ScriptedEngine) -> None:
    await chat.running("Hello?", "This")
    leave(chat, Recorder())
    engine.step(20)
    assert (await chat.reader.next(Done)).reason is Reason.STOP
