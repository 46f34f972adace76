"""A client that leaves stops costing GPU time, once nobody else looks on."""

from __future__ import annotations

import pytest

from sessions.events import Accepted, Done, Reason
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
