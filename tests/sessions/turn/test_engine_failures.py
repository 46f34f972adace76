"""An engine that dies costs a turn its end at most, and no turn its silence."""

from __future__ import annotations

import asyncio

import pytest

from engine.api import Streamer
from engine.messages import Request
from engine.scripted import ScriptedEngine
from sessions.events import Done, Reason, Status
from sessions.generation import Generator
from sessions.turn.turn import EngineWait
from tests.sessions.chat_driver import Chat, eventually, filtering
from tests.sessions.recorder import Recorder, continuous


async def test_a_death_before_the_first_word_is_retried(chat: Chat) -> None:
    """Once: a second death ends the turn."""
    await chat.running("Hello?")
    chat.engine.die()
    await chat.reader.next(Status)
    chat.engine.step(20)
    done = await chat.reader.next(Done)
    assert [status.state for status in chat.reader.of(Status)] == ["retrying"]
    assert (done.reason, chat.reader.text(done.turn_id)) == (Reason.STOP, chat.engine._reply)
    assert continuous(chat.reader.events)
    assert [request.messages[-1].content for request in chat.engine.requests] == ["Hello?", "Hello?"]
    await chat.running("Again?")
    for count in (2, 3):
        chat.engine.die()
        await eventually(lambda count=count: len(chat.reader.of(Status)) + len(chat.reader.of(Done)) > count)  # type: ignore[misc]
    assert chat.reader.of(Done)[-1].reason is Reason.INTERRUPTED
    assert len(chat.engine.requests) == 4


async def test_an_engine_that_gives_up_is_not_retried(chat: Chat) -> None:
    await chat.running("Hello?")
    chat.engine.fail("It crashed too often.")
    done = await chat.reader.next(Done)
    assert done.reason is Reason.INTERRUPTED
    assert done.error is not None
    assert "too often" in done.error.message


async def test_a_cancelled_turn_stays_cancelled_when_the_engine_dies(chat: Chat) -> None:
    chat.engine.hold_cancels = True
    await chat.running("Hello?")
    chat.cancel()
    chat.engine.die()
    done = await chat.reader.next(Done)
    assert (done.reason, done.error) == (Reason.CANCELLED, None)
    assert len(chat.engine.requests) == 1


async def test_a_reply_that_a_filter_ended_before_its_first_word_is_not_made_again(chat: Chat) -> None:
    """The engine dies before it confirms that it stopped."""
    chat.sessions.turns._runner._generator = Generator(chat.engine, filtering(outgoing=["darn"]))
    chat.engine.hold_cancels = True
    chat.engine.script("Darn it!")
    await chat.running("Hello?")
    chat.engine.step(2)
    await eventually(chat.live_conversation.turns[0].engine.stopping.is_set)
    chat.engine.die()
    done = await chat.reader.next(Done)
    assert (done.reason, done.chars, done.error) == (Reason.FILTERED, 0, None)
    assert len(chat.engine.requests) == 1


async def test_a_cancel_reaches_the_second_attempt(chat: Chat) -> None:
    accepted = await chat.running("Hello?")
    chat.engine.die()
    await chat.reader.next(Status)
    assert not chat.cancel(accepted.turn_id).already
    done = await chat.reader.next(Done)
    assert (done.cancel and done.cancel.steps_after) == 0


async def test_a_message_waits_for_an_engine_that_comes_back(chat: Chat) -> None:
    chat.engine.die(revive=False)
    sending = chat.begin_send("Hello?")
    await chat.wait_for_engine()
    chat.engine.revive()
    assert await sending is None
    await eventually(lambda: len(chat.engine.requests) == 1)
    chat.engine.step(20)
    assert (await chat.reader.next(Done)).reason is Reason.STOP


class Broken(ScriptedEngine):
    """An engine with a defect where nobody expects one."""

    def generate(self, request: Request) -> Streamer:
        raise ZeroDivisionError


async def test_a_defect_ends_its_turn_with_a_number(chat: Chat, reader: Recorder) -> None:
    chat.sessions.turns._runner._generator = Generator(Broken())
    await chat.send("Hello?")
    done = await reader.next(Done)
    assert done.reason is Reason.ERROR
    assert (done.error and done.error.code) == "internal"


async def test_a_timeout_of_something_else_is_not_taken_for_an_unconfirmed_stop() -> None:
    async def late() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        await EngineWait().in_time(late())


async def test_a_second_stop_gives_the_engine_no_more_time_to_confirm() -> None:
    wait = EngineWait()
    wait.stop()
    until = wait._until
    await asyncio.sleep(0)
    wait.stop()
    assert until is not None
    assert wait._until == until
