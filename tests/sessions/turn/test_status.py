"""While a reply has no text yet, its readers know why: its place in the queue, how far its prompt is."""

from __future__ import annotations

import pytest

from engine.scripted import ScriptedEngine
from sessions.events import Accepted, Done, Status
from sessions.turn.turn import Cancel
from tests.sessions.chat_driver import Chat, eventually
from tests.sessions.recorder import Recorder


@pytest.fixture
def engine() -> ScriptedEngine:
    """One reply at a time, and a prompt in steps of four tokens."""
    engine = ScriptedEngine(by_hand=True, context_tokens=200, max_batch=1)
    engine.prefill_tokens = 4
    return engine


def status_fields(reader: Recorder) -> list[tuple[str, int | None, float | None]]:
    return [(status.state, status.queue_position, status.progress) for status in reader.of(Status)]


async def queued_message(chat: Chat, *others: str) -> Accepted:
    """A message that waits for as many replies as others are named."""
    for name in others:
        await chat.running(name, conversation_id=name, reader=Recorder())
    accepted = await chat.send("one two three four", client_msg_id="mine")
    await chat.reader.next(Status)
    return accepted


async def test_a_device_that_comes_later_learns_the_place(chat: Chat) -> None:
    await queued_message(chat, "ann")
    tablet, phone = Recorder(), Recorder()
    shown = await chat.shown(tablet)
    assert (shown.wait, shown.page.messages[-1].status) == (chat.reader.of(Status)[-1], "running")
    await chat.send("one two three four", client_msg_id="mine", reader=phone)
    assert [type(event) for event in phone.events] == [Accepted, Status]


async def test_a_device_that_comes_after_the_first_word_learns_of_no_wait(chat: Chat) -> None:
    accepted = await queued_message(chat, "ann")
    chat.sessions.turns.cancel(chat.owner, Cancel(conversation_id="ann"))
    await eventually(lambda: chat.engine.statistics().queued == 1)
    while not chat.reader.text(accepted.turn_id):
        await chat.step()
    phone = Recorder()
    assert (await chat.shown(phone)).wait is None


async def test_nothing_is_told_of_a_wait_that_was_cancelled(chat: Chat) -> None:
    chat.engine.hold_cancels = True
    await queued_message(chat, "ann", "bob")
    chat.cancel()
    chat.sessions.turns.cancel(chat.owner, Cancel(conversation_id="ann"))
    chat.engine.step()
    await eventually(lambda: chat.live_conversation.turns[0].engine.stream is not None)
    chat.sessions.turns.cancel(chat.owner, Cancel(conversation_id="bob"))
    chat.engine.step(3)
    await chat.reader.next(Done)
    assert status_fields(chat.reader) == [("queued", 2, None)]
