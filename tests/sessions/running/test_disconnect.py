"""A client that leaves stops costing GPU time once nobody else looks on and the grace of its turn is over."""

from __future__ import annotations

import asyncio
import gc

import pytest
from redis.asyncio import Redis

from sessions.events import Accepted, Cause, Done, Reason
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder


async def test_a_turn_goes_on_while_another_connection_looks_on(chat: Chat) -> None:
    await chat.running("Hello?", "This")
    other = Recorder()
    await chat.history(other)
    chat.leave()
    chat.leave(Recorder())  # a stranger changes nothing
    chat.engine.step(20)
    assert (await other.next(Done)).reason is Reason.STOP


@pytest.mark.parametrize("handed", ["to the one who left", "to the one who came back"])
async def test_whatever_was_handed_to_anybody_counts_at_a_later_cancel(chat: Chat, handed: str) -> None:
    """The cut is the furthest offset handed to any transport, also to one that is gone, or by a replay."""
    accepted = await chat.running("Hello?", "This reply")
    other = Recorder()
    if handed == "to the one who left":
        await chat.history(other)
        other.set_sent(accepted.turn_id, 4)
    else:
        chat.reader.set_sent(accepted.turn_id, 4)
        await chat.resume(other, accepted.seq)
    chat.leave()
    chat.cancel()
    assert (await other.next(Done)).chars == len("This reply")


@pytest.mark.usefixtures("often")
async def test_one_who_leaves_while_queued_cancels_before_the_engine_is_asked(chat: Chat) -> None:
    """Nobody may wait for a reply that nobody will read: the queued turn ends without a request."""
    chat.engine.hold_cancels = True
    first = await chat.running("Hello?", "This")
    second = Recorder()
    waiting = chat.begin_send("No, wait!", reader=second, on_busy="interrupt")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    chat.leave()
    chat.leave(second)
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
    chat.leave(gone)
    assert await sending is None
    await chat.wait_idle()
    assert gone.of(Accepted) == []
    page = await chat.history(Recorder())
    assert page.messages[-1].usage is not None
    assert page.messages[-1].usage.generated_tokens == 0


LONG_S = 60.0
SHORT_S = 0.05


async def end_of(chat: Chat, accepted: Accepted) -> Done:
    """What the store has."""
    await chat.wait_idle()
    record = await chat.sessions.storage.history.turn(chat.keys, accepted.turn_id)
    assert record is not None
    assert record.done is not None
    return record.done


async def test_one_who_comes_back_within_the_grace_keeps_the_turn(chat: Chat) -> None:
    accepted = await chat.running("Hello?", "This", grace_s=LONG_S)
    chat.leave()
    returned = Recorder()
    await chat.resume(returned, accepted.seq)
    assert chat.live_conversation.turns[0].grace is None
    chat.engine.step(20)
    assert (await returned.next(Done)).reason is Reason.STOP


async def test_after_the_grace_the_turn_is_cancelled_once(chat: Chat) -> None:
    """What was written meanwhile was handed to nobody, and is not kept."""
    accepted = await chat.running("Hello?", "This", grace_s=SHORT_S)
    chat.leave()
    chat.engine.step()
    done = await end_of(chat, accepted)
    assert done.cancel is not None
    assert (done.reason, done.cancel.cause, done.chars) == (Reason.CANCELLED, Cause.DISCONNECT, 4)
    assert chat.engine.statistics().cancels == 1


async def test_each_leave_gives_the_whole_grace_anew_and_a_cancel_in_it_is_the_clients(chat: Chat) -> None:
    accepted = await chat.running("Hello?", "This", grace_s=LONG_S)
    loop = asyncio.get_running_loop()
    chat.leave()
    first = chat.live_conversation.turns[0].grace
    assert first is not None
    returned = Recorder()
    await chat.history(returned)
    chat.leave(returned)
    second = chat.live_conversation.turns[0].grace
    assert second is not None
    assert first.cancelled()
    assert first.when() < second.when() <= loop.time() + LONG_S
    chat.cancel()
    done = await end_of(chat, accepted)
    assert (done.cancel and done.cancel.cause) is Cause.CLIENT


async def test_a_turn_that_continues_goes_on_with_nobody_there(chat: Chat, reader: Recorder) -> None:
    """It keeps nothing of its sender, which has an outbox and a request. Who comes back is told all of it."""
    accepted = await chat.running("Hello?", "This", on_disconnect="continue")
    chat.leave()
    (live,) = chat.live_conversation.turns
    assert reader not in gc.get_referents(live)
    assert not chat.live_conversation.subscribers
    chat.engine.step(20)
    done = await end_of(chat, accepted)
    assert (done.reason, done.cancel) == (Reason.STOP, None)
    returned = Recorder()
    await chat.resume(returned, accepted.seq)
    assert returned.text(accepted.turn_id) == chat.engine._reply


async def test_the_longest_grace_does_not_help_the_turn_beside_it(chat: Chat) -> None:
    """Each turn has its own."""
    chat.engine.hold_cancels = True
    first = await chat.running("Hello?", "This", grace_s=LONG_S)
    waiting = chat.begin_send("No, wait!", on_busy="interrupt")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    chat.leave()
    chat.engine.step()
    assert await waiting is None
    done = await end_of(chat, first)
    assert (done.cancel and done.cancel.cause) is Cause.INTERRUPT
    assert len(chat.engine.requests) == 1


@pytest.mark.usefixtures("often")
async def test_nothing_stays_behind_of_those_who_left(chat: Chat, store: Redis) -> None:
    await chat.running("Hello?", "This", grace_s=SHORT_S)
    chat.leave()
    await chat.wait_idle()
    await eventually(lambda: chat.sessions.statistics().conversations == 0)
    assert await store.hget(chat.keys.conversation, "watchers") == b""
