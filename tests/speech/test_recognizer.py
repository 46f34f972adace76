"""Many who speak and one process that listens: what is forgotten, what fails, who is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from speech.errors import RecognitionOverload, RecognizerLost
from speech.interfaces import Listening, Started, Stopped
from speech.recognition import BEHIND_S, PocketSphinx, StreamingRecognizer
from tests.speech.scripted_recognizer_process import LOWEST
from tests.speech.voice_samples import RATE, silence, voiced

BY_HAND = Listening(rate=RATE, detects=False)
BY_EAR = Listening(rate=RATE)


@pytest.fixture
async def ear() -> AsyncIterator[StreamingRecognizer]:
    ear = StreamingRecognizer(PocketSphinx(), module="tests.speech.scripted_recognizer_process")
    async with ear.running():
        yield ear


async def test_what_was_heard_before_it_was_forgotten_is_not_told(ear: StreamingRecognizer) -> None:
    """The process has told of it long before it reads that it is to be forgotten."""
    async with ear.listen(BY_EAR, owner="a") as hearing:
        events = hearing.events()
        hearing.feed(silence(300) + voiced(900))
        assert isinstance(await anext(events), Started)
        hearing.feed(silence(900))
        while hearing._pending.answers.qsize() < 3:  # noqa: ASYNC110 - the process's socket is read by the loop
            await asyncio.sleep(0)
        hearing.clear()
        hearing.feed(silence(300) + voiced(900))
        began = await anext(events)
        assert isinstance(began, Started)
        assert began.at_ms > 2000


async def test_what_goes_wrong_with_one_speaker_is_told_to_him_and_the_others_go_on(
    ear: StreamingRecognizer,
) -> None:
    async with (
        ear.listen(BY_HAND, owner="a") as bad,
        ear.listen(BY_HAND, owner="b") as good,
    ):
        bad.feed(np.full(RATE, LOWEST, "<i2").tobytes())
        bad.commit()
        with pytest.raises(RecognizerLost, match="could not be listened to"):
            await anext(bad.events())
        good.feed(voiced(600))
        good.commit()
        assert await anext(good.events()) == Stopped(600, 600, "9600", is_committed=True)
    child = ear._child
    async with ear.listen(BY_HAND, owner="a") as again:
        again.feed(voiced(600))
        again.commit()
        assert isinstance(await anext(again.events()), Stopped)
    assert ear._child is child


async def test_no_more_sound_waits_than_may(ear: StreamingRecognizer) -> None:
    async with ear.listen(BY_EAR, owner="a") as hearing:
        second = voiced(1000)
        for _ in range(int(BEHIND_S)):
            hearing.feed(second)  # the loop did not turn, so nothing of it is known to be understood
        with pytest.raises(RecognitionOverload):
            hearing.feed(second)
        hearing.commit()
        async for event in hearing.events():
            if isinstance(event, Stopped) and event.is_committed:
                break
        while hearing.backlog_bytes:
            hearing._take(await hearing._pending.next())
        hearing.feed(second)
