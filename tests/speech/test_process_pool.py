"""Processes of models are kept alive, and what goes wrong with one recording or clause is its sender's alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import numpy as np
import pytest

from speech.errors import ModelLoadError, RecognizerLost, VoiceFailed
from speech.interfaces import ModelOptions, Recording
from speech.model_voice import ModelVoice
from speech.process import Cancel
from speech.recognition import PocketSphinx, Ready, Recognizer, Segment
from tests.speech.scripted_recognizers import Outcome

EARS = "tests.speech.scripted_recognizers"


@pytest.fixture
async def scripted_recognizer() -> AsyncIterator[Recognizer]:
    recognizer = Recognizer("scripted", PocketSphinx(), module=EARS)
    async with recognizer.running():
        yield recognizer


@pytest.fixture
async def voice() -> AsyncIterator[ModelVoice]:
    voice = ModelVoice("scripted", ModelOptions(model="none"), module="tests.speech.scripted_voice_process")
    async with voice.running():
        yield voice


async def segments_of(scripted_recognizer: Recognizer, outcome: Outcome, owner: str = "a") -> list[Segment]:
    recording = Recording(16_000, 1, np.full(1600, outcome, "<i2").tobytes())
    async with aclosing(scripted_recognizer.transcribe(recording, owner=owner)) as segments:
        return [segment async for segment in segments]


async def waits_for(scripted_recognizer: Recognizer, outcome: Outcome) -> asyncio.Task[list[Segment]]:
    """Somebody whose recording the process is at: it tells of each step."""
    task = asyncio.create_task(segments_of(scripted_recognizer, outcome))
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


async def test_a_recording_is_heard_window_by_window_in_the_language_of_the_first(
    scripted_recognizer: Recognizer,
) -> None:
    assert await segments_of(scripted_recognizer, Outcome.ENDED) == [
        Segment(0.01, 0.02, "word in None", "de"),
        Segment(0.06, 0.07, "word in de", "de"),
    ]
    assert await segments_of(scripted_recognizer, Outcome.SILENCE) == []


@pytest.mark.parametrize("outcome", [Outcome.ENDLESS, Outcome.FAILS])
async def test_who_leaves_and_a_recording_that_can_not_be_heard_hold_up_nobody(
    scripted_recognizer: Recognizer, outcome: Outcome
) -> None:
    if outcome is Outcome.ENDLESS:
        leaving = await waits_for(scripted_recognizer, outcome)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    else:
        with pytest.raises(RecognizerLost, match="could not be recognized"):
            await segments_of(scripted_recognizer, outcome)
    assert len(await segments_of(scripted_recognizer, Outcome.ENDED)) == 2


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
