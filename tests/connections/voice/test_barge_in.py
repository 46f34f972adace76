"""What sound over a reply does, from the samples of the microphone to the cut: by PocketSphinx with the demo's grammar.

Time is counted in samples.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import soxr

from speech.activity import has_voice
from speech.espeak import Espeak
from speech.listening_worker import RATE
from speech.pocketsphinx_decoder import PocketSphinxDecoder, in_digits
from tests.connections.voice.barge_in import GRAMMAR, outcome
from tests.speech.noise_samples import LOUD, NOISES, Pcm, noise

needs_a_voice = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
VOICES = ("en-us", "en-gb")


@pytest.fixture(scope="module")
def listener() -> PocketSphinxDecoder:
    return PocketSphinxDecoder(str(GRAMMAR))


def _each(*texts: str) -> list[tuple[str, str]]:
    return [(text, voice) for text in texts for voice in VOICES]


async def synthesize(text: str, voice: str) -> Pcm:
    """Return a text in a voice, from its first sound to its last, as loud as the noises."""
    clip = await Espeak((voice,)).speak(text, voice=voice)
    samples = soxr.resample(np.frombuffer(clip.pcm, "<i2").astype(np.float32), clip.rate, RATE)
    received = np.flatnonzero(np.abs(samples) > 200)
    samples = samples[received[0] : received[-1] + 1]
    return np.asarray(samples * (LOUD / np.abs(samples).max())).astype(np.int16)


LASTING = ("a drill, 10 s", "a tone of 440 Hz, 3 s")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LASTING)) for name in NOISES]
)
def test_a_noise_lets_the_reply_go_on_and_is_no_message(listener: PocketSphinxDecoder, name: str) -> None:
    assert outcome(listener, noise(name)) == (None, "")


@pytest.mark.parametrize("late", range(0, 480, 120))
def test_what_fits_some_coughs_of_a_fit_is_no_sentence(listener: PocketSphinxDecoder, late: int) -> None:
    assert outcome(listener, noise("a fit of four coughs"), late=late) == (None, "")


@needs_a_voice
@pytest.mark.parametrize(("text", "voice"), _each("yes", "mhm", "okay", "right", "sure"))
async def test_a_backchannel_lets_the_reply_go_on(
    listener: PocketSphinxDecoder, text: str, voice: str
) -> None:
    assert outcome(listener, await synthesize(text, voice)) == (None, "")


async def message_after_a_cut(listener: PocketSphinxDecoder, text: str, voice: str) -> str:
    """Say a text over a reply, check that it is cut within a second, and return the message."""
    cut_ms, message = outcome(listener, await synthesize(text, voice))
    assert cut_ms is not None
    assert cut_ms <= 1000
    return message


@needs_a_voice
@pytest.mark.parametrize(("text", "voice"), _each("stop", "stop it", "please stop", "wait", "hold on"))
async def test_a_stop_cuts_within_a_second_and_is_no_message(
    listener: PocketSphinxDecoder, text: str, voice: str
) -> None:
    assert await message_after_a_cut(listener, text, voice) == ""


@needs_a_voice
async def test_a_bang_before_a_word_hides_no_voice() -> None:
    soft = (await synthesize("stop it", VOICES[0]) * 0.05).astype(np.int16)
    assert has_voice(np.concatenate((noise("a clap"), soft)), RATE)


@needs_a_voice
@pytest.mark.parametrize(
    ("text", "voice"),
    _each("what did you say last", "tell me a story about a dragon", "what is seven plus eight"),
)
async def test_a_sentence_cuts_within_a_second_and_is_answered(
    listener: PocketSphinxDecoder, text: str, voice: str
) -> None:
    assert await message_after_a_cut(listener, text, voice) == in_digits(text)
