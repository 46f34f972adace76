"""An engine that dies costs a turn its end at most, and no turn its silence."""

from __future__ import annotations

from engine.api import Streamer
from engine.messages import Request
from engine.scripted import ScriptedEngine
from sessions.events import Done, Reason, Status
from sessions.generation import Generator
from tests.sessions.chat_driver import Chat, eventually, filtering
from tests.sessions.recorder import Recorder, continuous


async def test_a_death_before_the_first_word_is_retried(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    """Once: a second death ends the turn."""
    await chat.running("Hello?")
    engine.die()
    await reader.next(Status)
    engine.step(20)
    done = await reader.next(Done)
    assert [status.state for status in reader.of(Status)] == ["retrying"]
    assert (done.reason, reader.text(done.turn_id)) == (Reason.STOP, engine._reply)
    assert continuous(reader.events)
    assert [request.messages[-1].content for request in engine.requests] == ["Hello?", "Hello?"]
    await chat.running("Again?")
    for count in (2, 3):
        engine.die()
        await eventually(lambda count=count: len(reader.of(Status)) + len(reader.of(Done)) > count)  # type: ignore[misc]
    assert reader.of(Done)[-1].reason is Reason.INTERRUPTED
    assert len(engine.requests) == 4


async def test_an_engine_that_gives_up_is_not_retried(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    await chat.running("Hello?")
    engine.fail("It crashed too often.")
    done = await reader.next(Done)
    assert done.reason is Reason.INTERRUPTED
    assert done.error is not None
    assert "too often" in done.error.message


async def test_a_cancelled_turn_stays_cancelled_when_the_engine_dies(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    engine.hold_cancels = True
    await chat.running("Hello?")
    chat.cancel()
    engine.die()
    done = await reader.next(Done)
    assert (done.reason, done.error) == (Reason.CANCELLED, None)
    assert len(engine.requests) == 1


async def test_a_reply_that_a_filter_ended_before_its_first_word_is_not_made_again(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    """The engine dies before it confirms that it stopped."""
    chat.sessions.parts.turns._runner._generator = Generator(engine, filtering(outgoing=["darn"]))
    engine.hold_cancels = True
    engine.script("Darn it!")
    await chat.running("Hello?")
    engine.step(2)
    await eventually(chat.live_conversation.turns[0].engine.stopping.is_set)
    engine.die()
    done = await reader.next(Done)
    assert (done.reason, done.chars, done.error) == (Reason.FILTERED, 0, None)
    assert len(engine.requests) == 1


async def test_a_cancel_reaches_the_second_attempt(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    accepted = await chat.running("Hello?")
    engine.die()
    await reader.next(Status)
    assert not chat.cancel(accepted.turn_id).already
    done = await reader.next(Done)
    assert done.cancel is not None
    assert done.cancel.steps_after == 0


async def test_a_message_waits_for_an_engine_that_comes_back(
    chat: Chat, reader: Recorder, engine: ScriptedEngine
) -> None:
    engine.die(revive=False)
    sending = chat.begin_send("Hello?")
    await chat.wait_for_engine()
    engine.revive()
    assert await sending is None
    await eventually(lambda: len(engine.requests) == 1)
    engine.step(20)
    assert (await reader.next(Done)).reason is Reason.STOP


class Broken(ScriptedEngine):
    """An engine with a defect where nobody expects one."""

    def generate(self, request: Request) -> Streamer:
        raise ZeroDivisionError


async def test_a_defect_ends_its_turn_with_a_number(chat: Chat, reader: Recorder) -> None:
    chat.sessions.parts.turns._runner._generator = Generator(Broken())
    await chat.send("Hello?")
    done = await reader.next(Done)
    assert done.reason is Reason.ERROR
    assert done.error is not None
    assert done.error.code == "internal"
