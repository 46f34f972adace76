"""Speech recognition by PocketSphinx, one segment at a time, with numbers as digits. For recognizers' processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from pocketsphinx import Decoder, Endpointer

from speech.recognition import ENGLISH, Segment, Utterance, Word
from speech.recognition_worker import CancelCheck, Wave, WindowedJob
from speech.samples import FULL_SCALE, Samples

RATE = 16_000
LONGEST_S = 10.0
"""The longest segment: other requests wait for one at most."""
_FRAMES_A_SECOND = 100
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
_PADDING_S = len(_PADDING) / RATE
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

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> WindowedJob:  # noqa: ARG002 - there is one language, and times cost nothing
        """Return a recording to recognize. Its windows reach from one pause to the next; all are found in advance."""
        return WindowedJob(wave, list(_spoken(_samples(wave))))

    def transcribe(self, jobs: Sequence[WindowedJob], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each recording."""
        segments: list[list[Segment] | None] = [
            [] if watch()[row] else self._segments(job) for row, job in enumerate(jobs)
        ]
        for job in jobs:
            job.left.pop(0)
        return segments

    def recognize(self, samples: Samples) -> Utterance:
        """Return the words that are spoken, in one channel at `RATE`; empty if nothing was understood.

        They are a whole sentence if a sentence of the grammar ends with them.
        """
        self._decoder.start_utt()
        try:
            self._process(samples)
            so_far = self._spelled()
        finally:
            self._decoder.end_utt()
        spelled = self._spelled()
        if not self._has_grammar:
            return Utterance(spelled.text, None, spelled.phones >= _SENTENCE_PHONES)
        if not so_far.text:  # nothing matched but the end of the grammar
            return Utterance("")
        if spelled.text == so_far.text:
            return Utterance(spelled.text, is_whole=True, is_confident=spelled.phones >= _SENTENCE_PHONES)
        is_certain = so_far.phones >= _BEGINNING_PHONES
        text = so_far.text if spelled.text else ""
        return Utterance(text, False, is_certain, beginning=so_far.text if is_certain else "")

    def _segments(self, job: WindowedJob) -> list[Segment]:
        """Return the words of the next window as one segment; none if nothing was understood."""
        start, end = job.left[0]
        samples = _samples(job.wave[start:end])
        start_s, length_s = start / RATE, len(samples) / RATE
        so_far: tuple[Word, ...] = ()
        self._decoder.start_utt()
        try:
            self._process(samples)
            if self._has_grammar:
                # A pause may cut a sentence; at the end the decoder would complete it by the grammar.
                so_far = tuple(self._words(start_s, length_s))
        finally:
            self._decoder.end_utt()
        words = so_far or tuple(self._words(start_s, length_s))
        text = " ".join(word.word for word in words)
        return [Segment(round(start_s, 2), round(start_s + length_s, 2), text, words)] if words else []

    def _process(self, samples: Samples) -> None:
        whole = _with_noise(np.concatenate((_PADDING, samples, _PADDING)))
        self._decoder.process_raw(whole.tobytes(), full_utt=True)

    def _spelled(self) -> _Spelled:
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
        return _Spelled(in_digits(" ".join(words)), phones if is_speech else 0)

    def _words(self, start_s: float, length_s: float) -> Iterator[Word]:
        def at(frame: int) -> float:
            return round(start_s + min(max(frame / _FRAMES_A_SECOND - _PADDING_S, 0.0), length_s), 2)

        for one in self._decoder.seg() or ():
            if not _NO_WORD.match(one.word):
                yield Word(_VARIANT.sub("", one.word), at(one.start_frame), at(one.end_frame + 1))


class _Spelled(NamedTuple):
    """Words, with numbers as digits, and how many phones they have."""

    text: str
    phones: int


def _samples(wave: Wave) -> Samples:
    return (wave * FULL_SCALE).astype(np.int16)


def _with_noise(samples: Samples) -> Samples:
    sound = samples.astype(np.float64)
    noise = max(_NOISE_AMPLITUDE, _NOISE_SHARE * float(np.sqrt(np.square(sound).mean())))
    noisy = sound + noise * np.resize(_NOISE, len(samples))
    return np.clip(noisy, -(2**15), 2**15 - 1).astype(np.int16)


def _spoken(samples: Samples) -> Iterator[tuple[int, int]]:
    """Yield where speech begins and ends in samples, in pieces of `LONGEST_S` at most."""
    most = int(LONGEST_S * RATE)
    for start, end in _utterances(samples):
        for piece in range(start, end, most):
            yield piece, min(piece + most, end)


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


_WORDS = """zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
eighteen nineteen"""
_SMALL = {word: number for number, word in enumerate(_WORDS.split())}
_TENS = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
_ALONE = "one"
"""If the text has no other number, it may be a pronoun, and stays a word."""


def in_digits(text: str) -> str:
    """Return a text with whole numbers up to 999,999 as digits: "count from one to twenty two" is "count from 1 to 22".

    Successive numbers stay separate: "one two" is "1 2".
    """
    words, parts, found = text.split(), [], 0
    while words:
        number, length = _number(words)
        if length:
            found += 1
            parts.append(_ALONE if length == 1 and words[0] == _ALONE else str(number))
        else:
            parts.append(words[0])
        words = words[max(1, length) :]
    return " ".join("1" if found > 1 and part == _ALONE else part for part in parts)


def _number(words: Sequence[str]) -> tuple[int, int]:
    """Return the number that the words begin with, and how many words it takes; 0 words: there is none."""
    below, length = _below_thousand(words)
    if not below or words[length : length + 1] != ["thousand"]:
        return below, length
    length += 1
    rest, more = _remainder(words[length:])
    return 1000 * below + rest, length + more


def _below_thousand(words: Sequence[str]) -> tuple[int, int]:
    number, length = _below_hundred(words)
    if words[1:2] != ["hundred"] or not 0 < number < 10:  # noqa: PLR2004 - the language's own
        return number, length
    rest, more = _remainder(words[2:], most=100)
    return 100 * number + rest, 2 + more


def _remainder(words: Sequence[str], *, most: int = 1000) -> tuple[int, int]:
    """Return the number that is added to hundreds or thousands, and how many words it takes with an `and` before it."""
    skipped = int(words[:1] == ["and"])
    read = _below_hundred if most == 100 or skipped else _below_thousand  # noqa: PLR2004 - the language's own
    number, length = read(words[skipped:])
    return (number, length + skipped) if number else (0, 0)


def _below_hundred(words: Sequence[str]) -> tuple[int, int]:
    if not words:
        return 0, 0
    first, *more = words[:2]
    if first in _TENS:
        ones = _SMALL.get(more[0], 0) if more else 0
        return (_TENS[first] + ones, 2) if 0 < ones < 10 else (_TENS[first], 1)  # noqa: PLR2004 - as above
    return (_SMALL[first], 1) if first in _SMALL else (0, 0)
