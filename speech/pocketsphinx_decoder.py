"""Speech recognition by PocketSphinx, one segment at a time, with numbers as digits. For recognizers' processes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from pocketsphinx import Decoder, Endpointer

from speech.recognition import ENGLISH, Segment, Utterance
from speech.samples import Samples

RATE = 16_000
LONGEST_S = 10.0
"""The longest segment: other requests wait for one at most."""
_LONGEST_PHONE = 22
"""The most frames of a phone, on average over some words: a slow "no" has 20, and a hum mistaken for "hmm" has 46."""
_SENTENCE_PHONES, _BEGINNING_PHONES = 4, 7
"""With this many phones words are certain: coughs are mistaken for "no", "go", "that", or for the beginning of "who are you"."""
_PAUSE, _NOISE_FRAMES = 0.9, 15
"""How well silence fits a pause between words. If it fits worse for this many frames, the frames are noise: a fit of coughs is
mistaken for "go", "on" with noise between them."""
_NO_WORD = re.compile(r"[<\[+(].*")
_VARIANT = re.compile(r"\(\d+\)$")
_PADDING = np.zeros(RATE // 4, np.int16)
"""Silence around a segment, as in the model's training data."""
_NOISE = np.random.default_rng(0).normal(0.0, 1.0, RATE * 2)
_NOISE_AMPLITUDE, _NOISE_SHARE = 30.0, 0.08
"""Noise as in a quiet room, added to all sound: its amplitude, or its share of the sound's amplitude if that is more.

The model was not trained on digital silence: without the noise it mishears ten times as much of clean voices."""


class PocketSphinxDecoder:
    """A `RecognitionModel`. Segments leave no state behind: the speaker's loudness is measured again for each."""

    rate = RATE
    facts = ENGLISH

    def __init__(self, grammar: str | None) -> None:
        """Load the model. `grammar`: a JSGF file with everything that can be said; None: English in general."""
        self._has_grammar = grammar is not None
        # The best path of a lattice may end in the middle of a sentence; the grammar's own end may not.
        options = {"jsgf": grammar, "bestpath": False} if grammar else {}
        self._decoder: Any = Decoder(samprate=RATE, loglevel="FATAL", **options)

    def windows(self, samples: Samples) -> list[tuple[int, int]]:
        """Return where speech begins and ends, in pieces of `LONGEST_S` at most."""
        most = int(LONGEST_S * RATE)
        return [
            (piece, min(piece + most, end))
            for start, end in _utterances(samples)
            for piece in range(start, end, most)
        ]

    def transcribe(self, samples: Samples, _language: str | None, check: Callable[[], None]) -> list[Segment]:
        """Return the words of a window as one segment; none if nothing was understood."""
        check()
        so_far, whole = self._decoded(samples)
        # A pause may cut a sentence; at the end the decoder would complete it by the grammar.
        words = so_far.words if so_far.words and self._has_grammar else whole.words
        return [Segment(0.0, len(samples) / RATE, words)] if words else []

    def recognize(self, samples: Samples, _language: str | None, _check: Callable[[], None]) -> Utterance:
        """Return the words that are spoken, in one channel at `RATE`; empty if nothing was understood.

        They are a whole sentence if a sentence of the grammar ends with them.
        """
        so_far, whole = self._decoded(samples)
        text, is_confident = in_digits(whole.words), whole.phones >= _SENTENCE_PHONES
        if not self._has_grammar:
            return Utterance(text, None, is_confident)
        if not so_far.words:  # nothing matched but the end of the grammar
            return Utterance("")
        if whole.words == so_far.words:
            return Utterance(text, is_whole=True, is_confident=is_confident)
        is_certain = so_far.phones >= _BEGINNING_PHONES
        beginning = in_digits(so_far.words)
        text = beginning if whole.words else ""
        return Utterance(text, False, is_certain, beginning=beginning if is_certain else "")

    def _decoded(self, samples: Samples) -> tuple[_Hypothesis, _Hypothesis]:
        """Return what was understood of some sound before its end was known, and after."""
        padded = _with_noise(np.concatenate((_PADDING, samples, _PADDING)))
        self._decoder.start_utt()
        try:
            self._decoder.process_raw(padded.tobytes(), full_utt=True)
            so_far = self._hypothesis()
        finally:
            self._decoder.end_utt()
        return so_far, self._hypothesis()

    def _hypothesis(self) -> _Hypothesis:
        """Return the words and the number of their phones.

        The number is 0, so that the words are uncertain, if their phones last longer than any speaker's, or if noise is between
        words.
        """
        words: list[str] = []
        phones = frames = 0
        is_interrupted = was_noise = False
        for one in self._decoder.seg() or ():
            length = one.end_frame + 1 - one.start_frame
            if _NO_WORD.match(one.word):
                was_noise |= bool(words) and length >= _NOISE_FRAMES and one.prob < _PAUSE
            else:
                is_interrupted |= was_noise
                words.append(_VARIANT.sub("", one.word))
                phones += len(self._decoder.lookup_word(one.word).split())
                frames += length
        is_speech = not is_interrupted and frames <= _LONGEST_PHONE * phones
        return _Hypothesis(" ".join(words), phones if is_speech else 0)


class _Hypothesis(NamedTuple):
    """Words, and how many phones they have."""

    words: str
    phones: int


def _with_noise(samples: Samples) -> Samples:
    sound = samples.astype(np.float64)
    noise = max(_NOISE_AMPLITUDE, _NOISE_SHARE * float(np.sqrt(np.square(sound).mean())))
    noisy = sound + noise * np.resize(_NOISE, len(samples))
    return np.clip(noisy, -(2**15), 2**15 - 1).astype(np.int16)


def _utterances(samples: Samples) -> Iterator[tuple[int, int]]:
    pointer: Any = Endpointer(sample_rate=RATE)
    size = pointer.frame_bytes // 2
    was_speaking = False
    for start in range(0, len(samples) - size + 1, size):
        pointer.process(samples[start : start + size].tobytes())
        if was_speaking and not pointer.in_speech:
            yield _at(pointer.speech_start), _at(pointer.speech_end)
        was_speaking = pointer.in_speech
    if was_speaking:
        yield _at(pointer.speech_start), len(samples)


def _at(seconds: float) -> int:
    return int(seconds * RATE)


_ONES = "one|two|three|four|five|six|seven|eight|nine"
_TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_VALUES = {
    **{word: number for number, word in enumerate(f"{_ONES}|{_TEENS}".split("|"), 1)},
    **{word: 10 * number for number, word in enumerate(_TENS.split("|"), 2)},
}
_ONE_DIGIT = rf"(?:{_ONES})\b"
_TWO_DIGITS = rf"(?:(?:{_TENS})\b(?: {_ONE_DIGIT})?|(?:{_TEENS}|{_ONES})\b)"
_THREE_DIGITS = rf"(?:{_ONE_DIGIT} hundred\b(?: (?:and )?{_TWO_DIGITS})?|{_TWO_DIGITS})"
_NUMBER = re.compile(
    rf"\b(?:{_THREE_DIGITS} thousand\b(?: and {_TWO_DIGITS}| {_THREE_DIGITS})?|{_THREE_DIGITS}|zero\b)"
)


def in_digits(text: str) -> str:
    """Return a text with whole numbers up to 999,999 as digits: "count from one to twenty two" is "count from 1 to 22".

    Successive numbers stay separate: "one two" is "1 2". A single "one" may be a pronoun, and stays a word.
    """
    return text if _NUMBER.findall(text) == ["one"] else _NUMBER.sub(_digits, text)


def _digits(number: re.Match[str]) -> str:
    thousands = hundreds = 0
    for word in number[0].split():
        match word:
            case "thousand":
                thousands, hundreds = 1000 * hundreds, 0
            case "hundred":
                hundreds *= 100
            case _:
                hundreds += _VALUES.get(word, 0)
    return str(thousands + hundreds)
