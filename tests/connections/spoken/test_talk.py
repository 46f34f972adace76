"""What is spoken in a conversation, and who speaks there."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from connections.line.connection import Connection
from connections.spoken.reply import SpokenReply
from connections.spoken.talk import Said, Talk
from connections.wire.audio import AudioOutput, AudioStart, AudioStopped, Heard
from connections.wire.frames import Frame
from sessions.records import Owner
from sessions.service import Sessions
from speech.contract import Partly, Paused, SpokenClause, Started, Stopped

pytestmark = pytest.mark.asyncio


class Told:
    """What a connection was told."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []

    def push(self, frame: Frame) -> None:
        self.frames.append(frame)


class Speaker:
    """Speaks, and has a message's turn last until its reply was played."""

    def __init__(self) -> None:
        self.told = Told()
        self.connection = cast("Connection", self.told)
        self.start = AudioStart(output=AudioOutput())
        self.said: list[Said] = []

    def stop(self, reason: AudioStopped) -> None:
        self.told.push(reason)

    async def say(self, said: Said) -> None:
        self.said.append(said)
        if said.playback is not None:
            await said.playback.over()


class Silent:
    """A voice that has nothing to say here."""

    names = ("nobody",)

    async def speak(self, clause: str, *, voice: str) -> SpokenClause:
        raise NotImplementedError


def a_talk(tasks: asyncio.TaskGroup) -> Talk:
    return Talk(
        owner=Owner("anna", ""),
        conversation_id="here",
        sessions=cast("Sessions", None),  # no turn began, so none is ended
        voice=Silent(),
        tasks=tasks,
    )


async def test_words_after_those_that_were_forgotten_are_another_item() -> None:
    async with asyncio.TaskGroup() as tasks:
        talk, anna = a_talk(tasks), Speaker()
        anna.start = AudioStart()
        talk.begin(anna)
        for event in (Started(0), Partly(300, "count"), Partly(400, "count to")):
            talk.hear(event)
        talk.forget()
        for event in (Started(900), Stopped(900, 1800, "what now")):
            talk.hear(event)
    first, second = [frame for frame in anna.told.frames if isinstance(frame, Heard)]
    assert (first.text, second.text) == ("count", "what now")
    assert first.item != second.item


async def test_a_guess_is_taken_back_when_another_one_begins_to_speak() -> None:
    async with asyncio.TaskGroup() as tasks:
        talk, anna = a_talk(tasks), Speaker()
        talk.begin(anna)
        talk.hear(Started(0))
        talk.hear(Paused(900, "count to ten"))
        await asyncio.sleep(0)  # the message is sent
        talk.begin(Speaker())
        (said,) = anna.said
        is_over = said.playback is not None and cast("SpokenReply", said.playback).is_over
        talk.cut()  # whatever is left would be waited for
    assert is_over
