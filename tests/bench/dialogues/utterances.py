"""The utterances: sentences of the demo's, spoken by espeak-ng, with a pause inside if requested."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import soxr
from numpy.typing import NDArray

from speech.espeak import Espeak
from tests.speech.numbers_in_words import in_words

RATE = 16_000
GRAMMAR = Path(__file__).parents[3] / "demo_model" / "spoken.jsgf"
LOUD = 200
"""Loudness, of 32,767: speech ends after the last louder sample, before any noise is added."""
Pcm = NDArray[np.int16]


class Utterance(msgspec.Struct, frozen=True):
    """Sound at `RATE`, and its words. `ends_at`: the sample after the last one of speech."""

    text: str
    pcm: Pcm
    ends_at: int

    @property
    def loudness(self) -> float:
        """Root mean square of its samples."""
        return float((self.pcm.astype(np.float64) ** 2).mean() ** 0.5)


async def utterance(text: str, *, voice: str, pause_ms: int = 0) -> Utterance:
    """Speak a sentence; each ` | ` in it becomes a silence of `pause_ms`."""
    parts = [await _synthesize(part, voice) for part in text.split(" | ")]
    silence = np.zeros(RATE * pause_ms // 1000, np.int16)
    pcm = parts[0]
    for part in parts[1:]:
        pcm = np.concatenate((pcm, silence, part))
    ends_at = int(np.flatnonzero(np.abs(pcm) > LOUD)[-1]) + 1
    return Utterance(text.replace(" |", ""), pcm, ends_at)


async def _synthesize(text: str, voice: str) -> Pcm:
    speech = await Espeak((voice,)).speak(text, voice=voice)
    samples = np.frombuffer(speech.pcm, "<i2").astype(np.float32)
    pcm = np.clip(soxr.resample(samples, speech.rate, RATE), -32768, 32767).astype(np.int16)
    received = np.flatnonzero(np.abs(pcm) > LOUD)
    return np.asarray(pcm[received[0] : received[-1] + 1])


@cache
def _choices(rule: str) -> tuple[str, ...]:
    found = re.search(rf"<{rule}> = ([^;]*);", GRAMMAR.read_text())
    assert found is not None, rule
    return tuple(" ".join(one.split()) for one in found[1].split("|"))


def drawn(rule: str, rng: random.Random) -> str:
    """Return one of the words that a rule of the demo's grammar allows."""
    return rng.choice(_choices(rule))


def number(rng: random.Random, most: int) -> str:
    """Return a number in words, from one on."""
    return in_words(rng.randint(1, most))
