"""The sound of one reply, and who listens to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from connections.protocol.audio import AudioOutput, Sound
from connections.protocol.frames import Frame
from connections.spoken_reply import LISTENER_TIMEOUT_S, SpokenReply
from speech.espeak import Espeak
from speech.interfaces import Mark, SpokenClause
from tests.connections.factory import delta

pytestmark = pytest.mark.asyncio
RATE = 8000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Beeps(Espeak):
    """A voice that needs a tenth of a second and half a sample for each clause."""

    def __init__(self) -> None:
        super().__init__(("beep",))

    async def speak(self, clause: str, *, voice: str) -> SpokenClause:
        marks = (Mark(off=0, len=len(clause), start_ms=0, end_ms=100),)
        return SpokenClause(RATE, bytes(2 * (RATE // 10 + 4)), marks)


class Listener:
    """Whoever hears it, and what became of it."""

    def __init__(self, clock: Clock) -> None:
        self.frames: list[Frame] = []
        self.heard = asyncio.Event()
        self.cut = asyncio.Event()
        self.reply = SpokenReply(
            Beeps(),
            AudioOutput(rate=RATE),
            conversation_id="here",
            stream=1,
            cut=lambda _: self.cut.set(),
            clock=clock,
        )

    def push(self, frame: Frame) -> None:
        self.frames.append(frame)
        if isinstance(frame, Sound):
            self.heard.set()

    def write(self, text: str, off: int = 0) -> None:
        self.reply.feed(delta(text, off, place="here"))


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Listener, Clock]]:
    """Somebody who listens to a reply that is spoken."""
    clock = Clock()
    one = Listener(clock)
    one.reply.attach(one.push)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(one.reply.run())
        yield one, clock
        one.reply.stop()


async def test_a_listener_has_his_time_from_when_there_was_something_to_play() -> None:
    async with listening() as (one, clock):
        one.reply.begin("t")
        clock.now = LISTENER_TIMEOUT_S - 1
        one.write("One. ")
        await one.heard.wait()
        assert one.reply.listener_timeout_s == LISTENER_TIMEOUT_S
        clock.now += 3
        one.reply.played(50)
        assert one.reply.listener_timeout_s == LISTENER_TIMEOUT_S


async def test_a_listener_who_played_all_whole_milliseconds_waits_for_more_as_long_as_that_takes() -> None:
    async with listening() as (one, clock):
        one.reply.begin("t")
        one.write("One. ")
        await one.heard.wait()
        while one.reply._timeline.sent_ms < 100:  # noqa: ASYNC110 - turns of the loop
            await asyncio.sleep(0)
        one.reply.played(100)
        clock.now += 2 * LISTENER_TIMEOUT_S
        assert one.reply.listener_timeout_s is None


async def test_who_comes_back_in_time_hears_on() -> None:
    async with listening() as (one, _):
        one.reply.begin("t")
        one.reply.detach(0)
        one.reply.attach(one.push)
        for _turn in range(3):
            await asyncio.sleep(0)
        assert not one.cut.is_set()


async def test_a_reply_that_was_cut_before_its_turn_had_a_name_is_cut_when_it_has_one() -> None:
    async with listening() as (one, _):
        one.reply.stop()
        assert not one.cut.is_set()
        one.reply.begin("t")
        await one.cut.wait()
