"""What is heard becomes a text that is never revised."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from connections.api.realtime.translation.endpoint import SpeechInput, Transcript, voice_for
from speech.interfaces import Heard, Listening, Partial, Paused, Resumed, Started, Stopped


@pytest.mark.parametrize(
    ("heard", "text"),
    [
        (
            [Started(0), Partial(1, "good"), Partial(2, "good morning"), Stopped(0, 3, "good morning")],
            "good morning\n",
        ),
        (
            [Started(0), Partial(1, "could"), Partial(2, "good morning"), Stopped(0, 3, "good morning")],
            "good morning\n",
        ),
        (
            [Started(0), Partial(1, "one two"), Paused(2, "one two"), Resumed(3), Stopped(0, 4, "one two")],
            "one two \n",
        ),
        (
            [Started(0), Partial(1, "one two"), Partial(2, "one two"), Stopped(0, 4, "other words three")],
            "one two three\n",
        ),
        (
            [Started(0), Partial(1, "could"), Partial(2, "could", False), Stopped(0, 3, "good morning")],
            "good morning\n",
        ),
        ([Started(0), Stopped(0, 1, "")], ""),
        ([Started(0), Partial(1, "你好"), Paused(2, "你好"), Stopped(0, 3, "你好世界")], "你好世界\n"),
        (
            [Started(0), Partial(1, "我用AI"), Partial(2, "我用AI模"), Stopped(0, 3, "我用AI模型")],
            "我用AI模型\n",
        ),
        ([Started(0), Partial(1, "ดี"), Partial(2, "ดี"), Stopped(0, 3, "ดี ครับ")], "ดี ครับ\n"),
        ([Stopped(0, 1, "one"), Started(2), Stopped(2, 3, "two")], "one\ntwo\n"),
    ],
)
def test_words_are_told_once_and_what_is_said_between_silences_is_a_line(
    heard: list[Heard], text: str
) -> None:
    transcript = Transcript()
    assert "".join(transcript.take(one) for one in heard) == text


class Scripted:
    """An ear that hears what is written, and how it was asked to listen. Nothing of an `is_committed` comes before `commit`."""

    languages = ("en", "de")

    def __init__(self, *heard: Heard) -> None:
        self.heard = heard
        self.requests: list[Listening] = []
        self.fed: list[bytes] = []
        self.committed = asyncio.Event()
        self.listens = asyncio.Event()

    @asynccontextmanager
    async def listen(self, listening: Listening, *, owner: str) -> AsyncIterator[Scripted]:
        assert owner
        self.requests.append(listening)
        yield self

    def feed(self, sound: bytes) -> None:
        self.fed.append(sound)

    def commit(self) -> None:
        self.committed.set()

    def clear(self) -> None:
        raise AssertionError

    async def events(self) -> AsyncIterator[Heard]:
        self.listens.set()
        await self.committed.wait()
        self.committed.clear()
        for heard in self.heard:
            yield heard


def microphone(ear: Scripted, lines: list[str], language: str | None = None) -> SpeechInput:
    connection: Any = SimpleNamespace(
        owner="ann", caller=SimpleNamespace(subject="ann"), push=lambda _: pytest.fail("an error is told")
    )
    voice_service: Any = SimpleNamespace(ear=ear, slot=lambda _: nullcontext())
    return SpeechInput(voice_service, connection, lines.append, language=language)


async def test_the_end_waits_for_the_words_that_were_said_last() -> None:
    """A silence may have ended a line just before: its end is heard first, and is not the last."""
    lines: list[str] = []
    ear = Scripted(Stopped(0, 1, "one"), Started(2), Stopped(2, 3, "two", is_committed=True))
    one = microphone(ear, lines)
    listening = asyncio.create_task(one.run())
    await ear.listens.wait()
    await one.end()
    await listening
    assert "".join(lines) == "one\ntwo\n"


async def test_each_language_is_listened_to_as_such() -> None:
    lines: list[str] = []
    ear = Scripted(Stopped(0, 1, "one", is_committed=True))
    one = microphone(ear, lines, "en")
    listening = asyncio.create_task(one.run())
    await ear.listens.wait()
    ear.listens.clear()
    one.set_language("de")
    one.feed("AAA=")
    await ear.listens.wait()
    await one.end()
    await listening
    assert [request.language for request in ear.requests] == ["en", "de"]
    assert (ear.fed, lines) == ([b"", bytes(2)], ["one\n", "one\n"])


@pytest.mark.parametrize(
    ("language", "voice"),
    [("en", "en-us"), ("en-GB", "en-us"), ("zh", "cmn"), ("zh-Hant", "cmn"), ("xx", None)],
)
def test_a_voice_is_found_by_the_language(language: str, voice: str | None) -> None:
    assert voice_for(("en-us", "en-gb", "cmn", "de"), language) == voice
