"""One reply at a time: the next message is refused, or interrupts."""

from __future__ import annotations

import pytest

from engine.scripted import ScriptedEngine
from sessions.errors import Busy
from sessions.events import Accepted, Cause, Done
from tests.sessions.chat_driver import Chat, Options, eventually, running_turns_in_store
from tests.sessions.recorder import Recorder


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


async def test_an_interruption_of_an_interruption_clears_the_queue(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    engine.hold_cancels = True
    await chat.running("One?", "This")
    second = chat.begin_send("Two?", on_busy="interrupt")
    third = chat.begin_send("Three?", on_busy="interrupt")
    await eventually(lambda: len(chat.live_conversation.turns) == 3)
    engine.step()
    assert [await second, await third] == [None, None]
    await eventually(lambda: len(engine.requests) == 2)
    engine.hold_cancels = False
    await chat.stop()
    assert [done.cancel and done.cancel.cause for done in reader.of(Done)] == [
        Cause.INTERRUPT,
        Cause.INTERRUPT,
        Cause.CLIENT,
    ]
    assert [one.content for one in engine.requests[1].messages[-2:]] == ["Two?", "Three?"]


async def test_a_message_behind_a_cancel_is_never_busy(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    engine.hold_cancels = True
    await chat.running("Hello?", "This")
    chat.cancel()
    sending = chat.begin_send("And now?")
    await eventually(lambda: len(chat.live_conversation.turns) == 2)
    engine.step()
    assert await sending is None
    assert reader.of(Accepted)[-1].seq == reader.of(Done)[0].seq + 1
    engine.hold_cancels = False


async def test_another_replicas_reply_makes_the_conversation_busy(chat: Chat) -> None:
    await chat.exchange("Hello?")
    await chat.sessions.parts.client.hset(chat.keys.conversation, "running", "turn_elsewhere")
    with pytest.raises(Busy):
        await chat.send("And now?")
    assert await running_turns_in_store(chat.sessions.parts.client) == 0


async def test_stale_facts_are_read_again(chat: Chat) -> None:
    """Another replica wrote to the conversation since this one looked."""
    await chat.exchange("Hello?")
    meta = await chat.sessions.parts.storage.history.load(chat.keys)
    assert meta is not None
    chat.live_conversation.know(meta)
    await chat.sessions.parts.client.hset(chat.keys.conversation, "seq", meta.seq + 1)
    assert (await chat.send("And now?")).seq == meta.seq + 2
