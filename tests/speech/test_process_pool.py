"""Processes of models are kept alive, and what goes wrong with one recording or clause is its sender's alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import pytest

from speech.errors import ModelLoadError, RecognizerLost, VoiceFailed
from speech.interfaces import Coding, Recording
from speech.model_families import Options
from speech.model_voice import ModelVoice
from speech.process import Cancel
from speech.recognition import PocketSphinx, Ready, Recognizer
from tests.speech.scripted_recognizers import Outcome

EARS = "tests.speech.scripted_recognizers"


@pytest.fixture
async def scripted_recognizer() -> AsyncIterator[Recognizer]:
    recognizer = Recognizer("scripted", PocketSphinx(), module=EARS)
    async with recognizer.running():
        yield recognizer


@pytest.fixture
async def voice() -> AsyncIterator[ModelVoice]:
    voice = ModelVoice("scripted", Options(model="none"), module="tests.speech.scripted_voice_process")
    async with voice.running():
        yield voice


async def transcribe(scripted_recognizer: Recognizer, outcome: Outcome, owner: str = "a") -> list[str]:
    samples = np.full(1600, outcome, "<i2").tobytes()
    recording = Recording(Coding.PCM16, 16_000, 1, samples)
    async with aclosing(scripted_recognizer.transcribe(recording, owner=owner)) as segments:
        return [segment.text async for segment in segments]


async def waits_for(scripted_recognizer: Recognizer, outcome: Outcome) -> asyncio.Task[list[str]]:
    """Somebody whose recording the process is at: it tells of each step."""
    task = asyncio.create_task(transcribe(scripted_recognizer, outcome))
    while not scripted_recognizer.waiting:  # noqa: ASYNC110 - it is a turn of the loop
        await asyncio.sleep(0)
    received_at = scripted_recognizer._received_at
    while scripted_recognizer._received_at == received_at:  # noqa: ASYNC110 - the process's socket is read by the loop
        await asyncio.sleep(0)
    return task


async def test_what_a_process_refuses_is_told_to_whoever_starts_it() -> None:
    with pytest.raises(ModelLoadError, match="There is no such model"):
        async with Recognizer("none", PocketSphinx("refuse"), module=EARS).running():
            pass


async def test_what_a_process_refuses_that_was_not_needed_so_far_is_told_to_whoever_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once: nothing is gained by waiting for it to be started once more."""
    monkeypatch.setattr("speech.process.START_S", 600.0)
    lazy = Recognizer("none", PocketSphinx("refuse"), known=Ready(languages={}), module=EARS)
    async with lazy.running():
        for _ in range(2):
            with pytest.raises(RecognizerLost, match="There is no such model"):
                async with asyncio.timeout(60), lazy.request(Cancel, lost="It ended."):
                    pass


async def test_who_leaves_holds_up_nobody(scripted_recognizer: Recognizer) -> None:
    leaving = await waits_for(scripted_recognizer, Outcome.ENDLESS)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    assert await transcribe(scripted_recognizer, Outcome.ENDED) == ["1"]


async def test_recordings_that_wait_at_the_same_time_are_heard_together(
    scripted_recognizer: Recognizer,
) -> None:
    first = await waits_for(scripted_recognizer, Outcome.ENDLESS)
    others = [
        asyncio.create_task(transcribe(scripted_recognizer, Outcome.ENDED, owner))
        for owner in ("b", "c", "d")
    ]
    while scripted_recognizer.waiting < 4:  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)
    first.cancel()
    assert await asyncio.gather(*others) == [["3"]] * 3


@pytest.mark.parametrize("outcome", [Outcome.NO_NUMBERS, Outcome.FAILS])
async def test_a_recording_that_can_not_be_heard_is_its_senders_alone(
    scripted_recognizer: Recognizer, outcome: Outcome
) -> None:
    first = await waits_for(scripted_recognizer, Outcome.ENDLESS)
    other, bad = (
        asyncio.create_task(transcribe(scripted_recognizer, one, owner))
        for one, owner in ((Outcome.ENDED, "b"), (outcome, "c"))
    )
    while scripted_recognizer.waiting < 3:  # noqa: ASYNC110 - turns of the loop
        await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(RecognizerLost, match="could not be recognised"):
        await bad
    assert len(await other) == 1


async def test_a_voice_that_is_killed_is_told_of_and_started_again(voice: ModelVoice) -> None:
    speaking = asyncio.create_task(voice.speak("endless", voice="default"))
    while not voice.waiting:  # noqa: ASYNC110 - a turn of the loop
        await asyncio.sleep(0)
    assert voice._child is not None
    voice._child.kill()
    with pytest.raises(VoiceFailed, match="ended while it spoke"):
        await speaking
    assert len(await voice.speak("four", voice="default")) == 8


@pytest.mark.parametrize(
    ("text", "why"), [("for hours", "could not speak this text"), ("a defect", "could not be spoken")]
)
async def test_a_clause_that_can_not_be_spoken_is_told_to_its_sender(
    voice: ModelVoice, text: str, why: str
) -> None:
    with pytest.raises(VoiceFailed, match=why):
        await voice.speak(text, voice="default")
    assert await voice.speak("well", voice="default")


async def test_who_stops_listening_ends_the_voice(voice: ModelVoice) -> None:
    text = "This is spoken. This may be made. This is endless."
    spoken = voice.speaking(text, voice="default", speed=1.0, owner="a")
    async with spoken as speaking, aclosing(speaking.parts()) as parts:
        assert len(await anext(parts)) == 2 * len("This is spoken.")
    assert not voice.waiting
    assert await voice.speak("well", voice="default")
