"""One reply at a time: the next message is refused, interrupts, or waits and is answered in its order."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from engine.errors import EngineBusy
from engine.messages import PLAIN, ReplySpec
from engine.scripted import ScriptedEngine
from sessions.errors import Busy, ContextOverflow, QueueFull
from sessions.events import Accepted, Cause, Done, Reason, Removed
from sessions.turn.message_request import Edit
from tests.sessions.chat_driver import Chat, Options, eventually, running_turns_in_store, serving
from tests.sessions.recorder import Recorder, continuous


async def test_a_refused_sender_is_not_attached(chat: Chat) -> None:
    stranger = Recorder()
    await chat.running("Hello?", "This")
    with pytest.raises(Busy):
        await chat.send("And now?", reader=stranger)
    await chat.step()
    assert stranger.events == []


async def test_of_two_at_once_the_first_wins(chat: Chat, reader: Recorder) -> None:
    first, second = chat.begin_send("One?"), chat.begin_send("Two?")
    assert await first is None
    assert isinstance(await second, Busy)
    assert await chat.messages() == [("user", "One?"), ("assistant", "")]


@pytest.mark.parametrize(
    ("seen", "turn", "chars"),
    [(2, "named", 2), (2, "", 2), (99, "", 4), (None, "named", 4), (1, "ended before", 4)],
)
async def test_an_interrupted_reply_ends_where_its_reader_saw_it_end(
    chat: Chat, reader: Recorder, seen: int | None, turn: str, chars: int
) -> None:
    """What was seen of another turn cuts none."""
    first = await chat.running("Hello?", "This")
    options: Options = {"on_busy": "interrupt"}
    if seen is not None:
        options["seen_off"] = seen
    if turn:
        options["seen_turn_id"] = first.turn_id if turn == "named" else turn
    await chat.send("No, wait!", **options)
    done = await reader.next(Done)
    assert (done.turn_id, done.chars) == (first.turn_id, chars)
    assert (await chat.messages())[1] == ("assistant", "This"[:chars])


async def test_an_interruption_of_an_interruption_clears_the_queue(chat: Chat) -> None:
    chat.engine.hold_cancels = True
    await chat.running("One?", "This")
    second = chat.begin_send("Two?", on_busy="interrupt")
    third = chat.begin_send("Three?", on_busy="interrupt")
    await eventually(lambda: len(chat.live_conversation.turns) == 3)
    chat.engine.step()
    assert [await second, await third] == [None, None]
    await eventually(lambda: len(chat.engine.requests) == 2)
    chat.engine.hold_cancels = False
    await chat.stop()
    assert [done.cancel and done.cancel.cause for done in chat.reader.of(Done)] == [
        Cause.INTERRUPT,
        Cause.INTERRUPT,
        Cause.CLIENT,
    ]
    assert [one.content for one in chat.engine.requests[1].messages[-2:]] == ["Two?", "Three?"]


async def test_a_message_behind_a_cancel_is_never_busy(chat: Chat) -> None:
    chat.engine.hold_cancels = True
    await chat.running("Hello?", "This")
    chat.cancel()
    sending = chat.begin_send("And now?")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    chat.engine.step()
    assert await sending is None
    assert chat.reader.of(Accepted)[-1].seq == chat.reader.of(Done)[0].seq + 1
    chat.engine.hold_cancels = False


async def test_another_replicas_reply_makes_the_conversation_busy(chat: Chat) -> None:
    await chat.exchange("Hello?")
    await chat.sessions.client.hset(chat.keys.conversation, "running", "turn_elsewhere")
    with pytest.raises(Busy):
        await chat.send("And now?")
    assert await running_turns_in_store(chat.sessions.client) == 0


async def test_only_so_many_wait_and_each_once(store: Redis, engine: ScriptedEngine) -> None:
    async with serving(store, engine, max_queued=1) as chat:
        await chat.running("One?", "This")
        two = await chat.enqueue("Two?", client_msg_id="two")
        with pytest.raises(QueueFull):
            await chat.send("Three?", on_busy="enqueue")
        again = await chat.send("Two?", on_busy="enqueue", client_msg_id="two")
        assert (again.duplicate, again.turn_id) == (True, two.turn_id)
        chat.cancel()


async def test_a_message_that_never_fits_is_refused_before_it_waits(chat: Chat, reader: Recorder) -> None:
    await chat.running("One?", "This")
    with pytest.raises(ContextOverflow):
        await chat.send("word " * 300, on_busy="enqueue")
    assert len(reader.of(Accepted)) == 1


async def test_a_message_that_is_cancelled_before_it_waits_does_not_wait_for_an_engine_that_restarts(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    await chat.running("One?")
    engine.die(revive=False)
    sending = chat.begin_send("Two?", on_busy="enqueue")
    await chat.wait_for_engine(2)
    chat.cancel()
    assert await sending is None
    await reader.next(Done, count=2)
    assert [done.reason for done in reader.of(Done)] == [Reason.CANCELLED] * 2


async def test_a_waiting_message_that_is_cancelled_ends_at_once_and_what_comes_behind_it_follows_it(
    chat: Chat, reader: Recorder
) -> None:
    first = await chat.running("One?", "This")
    second = await chat.enqueue("Two?")
    third = await chat.enqueue("Three?")
    assert (second.queue_position, third.queue_position) == (1, 2)
    chat.cancel(second.turn_id)
    done = await reader.next(Done)
    assert (done.turn_id, done.reason, done.chars) == (second.turn_id, Reason.CANCELLED, 0)
    assert (done.cancel and done.cancel.steps_after) == 0
    page = await chat.history(Recorder())
    assert [message.content for message in page.messages] == ["One?", "This", "Two?", "", "Three?"]
    assert page.messages[1].siblings == [page.messages[1].message_id]
    older = await chat.history(Recorder(), before=page.messages[2].message_id)
    assert [message.content for message in older.messages] == ["One?", "This"]
    chat.cancel(third.turn_id)
    await reader.next(Done, count=2)
    fourth = await chat.enqueue("Four?")
    for accepted in (first, fourth):
        await chat.finish(accepted.turn_id)
    reply = chat.engine._reply
    contents = ["One?", reply, "Two?", "", "Three?", "", "Four?", reply]
    assert await chat.texts() == contents
    assert continuous(reader.events)


async def test_a_cancel_of_the_conversation_takes_the_queue_too(chat: Chat, reader: Recorder) -> None:
    await chat.running("One?", "This")
    await chat.enqueue("Two?")
    chat.cancel()
    await chat.wait_idle()
    assert [done.reason for done in reader.of(Done)] == [Reason.CANCELLED] * 2
    assert len(chat.engine.requests) == 1
    assert continuous(reader.events)
    await chat.exchange("Three?", "Yes.")


async def test_a_rollback_takes_the_running_exchange_and_the_queue_out(chat: Chat, reader: Recorder) -> None:
    await chat.exchange("Hello?", "Hello.")
    await chat.running("One?")
    await chat.enqueue("Two?")
    await chat.running("Instead?", "", on_busy="rollback")
    gone = reader.of(Done)[1:]
    assert [(done.removed, done.cancel and done.cancel.cause) for done in gone] == [
        (True, Cause.ROLLBACK)
    ] * 2
    assert continuous(reader.events)
    assert await chat.texts() == ["Hello?", "Hello.", "Instead?", ""]


async def test_a_waiting_message_can_be_rolled_back_alone(chat: Chat, reader: Recorder) -> None:
    first = await chat.running("One?", "This")
    second = await chat.enqueue("Two?")
    chat.cancel(second.turn_id, rollback=True)
    assert (await reader.next(Done)).removed
    await chat.step()
    await chat.finish(first.turn_id)
    assert await chat.texts() == ["One?", chat.engine._reply]
    assert continuous(reader.events)
    assert not reader.of(Removed)


async def test_what_is_sent_behind_a_waiting_edit_that_was_rolled_back_follows_the_running_reply(
    chat: Chat, reader: Recorder
) -> None:
    """An edit of the first message has no parent; what comes behind it still has one."""
    first = await chat.running("One?", "This")
    chat.begin_send("Another one?", on_busy="enqueue", place=Edit(first.message_id))
    edit = await reader.next(Accepted, count=2)
    chat.cancel(edit.turn_id, rollback=True)
    await reader.next(Done)
    behind = await chat.enqueue("Two?")
    done = await chat.finish(first.turn_id)
    assert behind.parent_id == done.message_id


async def test_whoever_leaves_takes_the_waiting_messages_along(chat: Chat, store: Redis) -> None:
    await chat.running("One?", "This")
    await chat.enqueue("Two?")
    chat.sessions.disconnect(chat.reader)
    await chat.wait_idle()
    assert len(chat.engine.requests) == 1
    assert await running_turns_in_store(store) == 0


async def test_a_queued_message_that_the_engine_has_no_room_for_says_when_to_come_again(
    chat: Chat, reader: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(messages: object, *, client: str = "", spec: ReplySpec = PLAIN) -> int:
        raise EngineBusy("Full.", retry_after_s=7)

    first = await chat.running("One?", "This")
    await chat.enqueue("Two?")
    monkeypatch.setattr(chat.engine, "count_tokens", full)
    await chat.finish(first.turn_id)
    error = (await reader.next(Done, count=2)).error
    assert error is not None
    assert (error.code, error.retry_after_ms) == ("overloaded", 7000)
