"""What sound over a reply does, from the samples of the microphone to the cut: by PocketSphinx with the demo's grammar.

Time is counted in samples.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import soxr

from connections.spoken.conduct import Conduct, Do, Say, Understood
from speech.contract import Listening
from speech.listening.stream import RATE, SpeechStream, Utterance
from speech.recognition.decoding import Listener
from speech.sound.wav import Coding
from speech.voice.timed_espeak import TimedEspeak
from tests.speech.noises import LOUD, NOISES, Pcm, noise

needs_a_voice = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
GRAMMAR = Path(__file__).parents[3] / "demo_model" / "spoken.jsgf"
VOICES = ("en-us", "en-gb")
STEP = RATE * 3 // 100
LEAD, REST = np.zeros(RATE, np.int16), np.zeros(RATE * 2, np.int16)


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener(str(GRAMMAR))


def _each(*texts: str) -> list[tuple[str, str]]:
    return [(text, voice) for text in texts for voice in VOICES]


class Outcome(NamedTuple):
    """`cut_ms`: from the first sample of the sound to the cut; None: the reply continued. `said`: the message."""

    cut_ms: float | None
    said: str


def outcome(listener: Listener, sound: Pcm) -> Outcome:
    """Return what a sound does that begins over a reply, with the native endpoint's settings."""
    listening = Listening(coding=Coding.PCM16, rate=RATE, pause_ms=30, finished_ms=200, unfinished_ms=1200)
    stream = SpeechStream(listening, lambda samples: Utterance(*listener.heard(samples)), clock=lambda: 0.0)
    conduct = Conduct(interrupts=True, interrupt_ms=300, guesses=True)
    room = np.random.default_rng(0).normal(0, 30, len(LEAD) + len(sound) + len(REST))
    microphone = (np.concatenate((LEAD, sound, REST)) + room).astype("<i2")
    cut_ms, said = None, ""
    for at in range(0, len(microphone) - STEP, STEP):
        stream.feed(microphone[at : at + STEP].tobytes())
        while stream.has_work:
            if (event := stream.step()) is None:
                continue
            for act in conduct.heard(event, talking=cut_ms is None):
                if act is Do.CUT:
                    cut_ms = (at + STEP - len(LEAD)) * 1000 / RATE
                elif isinstance(act, Say):
                    said = act.text
                elif isinstance(act, Understood) and act.final and not act.text:
                    said = ""
    return Outcome(cut_ms, said)


async def spoken(text: str, voice: str) -> Pcm:
    """Return a text in a voice, from its first sound to its last, as loud as the noises."""
    said = await TimedEspeak((voice,)).speak(text, voice=voice)
    samples = soxr.resample(np.frombuffer(said.pcm, "<i2").astype(np.float32), said.rate, RATE)
    heard = np.flatnonzero(np.abs(samples) > 200)
    samples = samples[heard[0] : heard[-1] + 1]
    return np.asarray(samples * (LOUD / np.abs(samples).max())).astype(np.int16)


@pytest.mark.parametrize("name", NOISES)
def test_a_noise_lets_the_reply_go_on_and_is_no_message(listener: Listener, name: str) -> None:
    assert outcome(listener, noise(name)) == (None, "")


@needs_a_voice
@pytest.mark.parametrize(("text", "voice"), _each("yes", "mhm", "okay", "right", "sure"))
async def test_a_backchannel_lets_the_reply_go_on(listener: Listener, text: str, voice: str) -> None:
    assert outcome(listener, await spoken(text, voice)) == (None, "")


@needs_a_voice
@pytest.mark.parametrize(("text", "voice"), _each("stop", "stop it", "please stop", "wait", "hold on"))
async def test_a_stop_cuts_within_a_second_and_is_no_message(
    listener: Listener, text: str, voice: str
) -> None:
    cut_ms, said = outcome(listener, await spoken(text, voice))
    assert cut_ms is not None
    assert cut_ms <= 1000
    assert said == ""


@needs_a_voice
@pytest.mark.parametrize(
    ("text", "voice"),
    _each("what did you say last", "tell me a story about a dragon", "what is seven plus eight"),
)
async def test_a_sentence_cuts_within_a_second_and_is_answered(
    listener: Listener, text: str, voice: str
) -> None:
    cut_ms, said = outcome(listener, await spoken(text, voice))
    assert cut_ms is not None
    assert cut_ms <= 1000
    assert said
