"""Recognition by PocketSphinx, a segment at a time, with numbers in digits. For the processes of recognizers."""

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
"""Seconds of one segment: others wait for the end of one at most."""
_FRAMES_A_SECOND = 100
_LONGEST_PHONE = 22
"""Frames of each sound of some words on average: a slow "no" has 20, and a hum that is taken for "hmm" 46."""
_SENTENCE_PHONES, _BEGINNING_PHONES = 4, 7
"""So many sounds make words certain: coughs are taken for "no", "go", "that", or for the beginning of "who are you"."""
_PAUSE, _SOUND_FRAMES = 0.9, 15
"""How well silence fits a pause between words; what fits worse for so many frames is a sound: a fit of coughs is taken for
"go", "on" with others between."""
_NO_WORD = re.compile(r"[<\[+(].*")
_VARIANT = re.compile(r"\(\d+\)$")
_ROOM = np.zeros(RATE // 4, np.int16)
"""Silence around a segment, as in the model's training."""
_ROOM_S = len(_ROOM) / RATE
_NOISE = np.random.default_rng(0).normal(0.0, 1.0, RATE * 2)
_SOFTEST, _SOFT = 30.0, 0.08
"""A room's soft noise, added to all sound: its amplitude, and its share of the sound's if that is more.

The model knows no digital silence: of clean voices it mishears ten times as much without it."""


class PocketSphinxDecoder:
    """A `RecognitionModel`. Segments leave no state in it: a speaker's loudness is measured again for each."""

    rate = RATE
    facts = ENGLISH

    def __init__(self, grammar: str | None) -> None:
        """Load the model. `grammar`: a JSGF file with everything that can be said; None: English in general."""
        self._has_grammar = grammar is not None
        # The best path of a lattice may end in the middle of a sentence; the grammar's own end may not.
        options = {"jsgf": grammar, "bestpath": False} if grammar else {}
        self._decoder: Any = Decoder(samprate=RATE, loglevel="FATAL", **options)

    def begin(self, wave: Wave, *, language: str | None, wants_words: bool) -> WindowedJob:  # noqa: ARG002 - there is one language, and times cost nothing
        """Return a recording to recognize, with a window from each pause to the next, all of which are looked for at once."""
        return WindowedJob(wave, list(_spoken(_samples(wave))))

    def transcribe(self, jobs: Sequence[WindowedJob], watch: CancelCheck) -> list[list[Segment] | None]:
        """Recognize the next window of each."""
        segments: list[list[Segment] | None] = [
            [] if watch()[row] else self._segments(job) for row, job in enumerate(jobs)
        ]
        for job in jobs:
            job.left.pop(0)
        return segments

    def recognize(self, samples: Samples) -> Utterance:
        """Return the words of a speaker, one channel at `RATE`; empty if nothing was understood.

        They are a whole sentence if one of the grammar ends there.
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
        if not so_far.text:  # nothing fitted but the grammar's end
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
                # A recording's pause may cut a sentence, which the grammar's end would complete.
                so_far = tuple(self._words(start_s, length_s))
        finally:
            self._decoder.end_utt()
        words = so_far or tuple(self._words(start_s, length_s))
        text = " ".join(word.word for word in words)
        return [Segment(round(start_s, 2), round(start_s + length_s, 2), text, words)] if words else []

    def _process(self, samples: Samples) -> None:
        whole = _in_a_room(np.concatenate((_ROOM, samples, _ROOM)))
        self._decoder.process_raw(whole.tobytes(), full_utt=True)

    def _spelled(self) -> _Spelled:
        """Return the words. They count as no sounds, and so are uncertain, if these last longer than those of any speaker.

        Nor do they if there are other sounds between them.
        """
        words: list[str] = []
        phones = frames = 0
        is_parted = was_sound = False
        for one in self._decoder.seg() or ():
            length = one.end_frame + 1 - one.start_frame
            if _NO_WORD.match(one.word):
                was_sound |= bool(words) and length >= _SOUND_FRAMES and one.prob < _PAUSE
            else:
                is_parted |= was_sound
                words.append(_VARIANT.sub("", one.word))
                phones += len(self._decoder.lookup_word(one.word).split())
                frames += length
        is_speech = not is_parted and frames <= _LONGEST_PHONE * phones
        return _Spelled(in_digits(" ".join(words)), phones if is_speech else 0)

    def _words(self, start_s: float, length_s: float) -> Iterator[Word]:
        def at(frame: int) -> float:
            return round(start_s + min(max(frame / _FRAMES_A_SECOND - _ROOM_S, 0.0), length_s), 2)

        for one in self._decoder.seg() or ():
            if not _NO_WORD.match(one.word):
                yield Word(_VARIANT.sub("", one.word), at(one.start_frame), at(one.end_frame + 1))


class _Spelled(NamedTuple):
    """Words, with numbers in digits, and how many sounds they have."""

    text: str
    phones: int


def _samples(wave: Wave) -> Samples:
    return (wave * FULL_SCALE).astype(np.int16)


def _in_a_room(samples: Samples) -> Samples:
    sound = samples.astype(np.float64)
    noise = max(_SOFTEST, _SOFT * float(np.sqrt(np.square(sound).mean())))
    noisy = sound + noise * np.resize(_NOISE, len(samples))
    return np.clip(noisy, -(2**15), 2**15 - 1).astype(np.int16)


def _spoken(samples: Samples) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of speech in samples, in pieces of `LONGEST_S` at most."""
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
"""Without another number next to it, it may be a pronoun, and stays a word."""


def in_digits(text: str) -> str:
    """Return a text with whole numbers up to 999,999 in digits: "count from one to twenty two" is "count from 1 to 22".

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
    """Return the number that the words begin with, and the number of its words; 0 words: there is none."""
    below, length = _below_thousand(words)
    if not below or words[length : length + 1] != ["thousand"]:
        return below, length
    length += 1
    rest, more = _behind(words[length:])
    return 1000 * below + rest, length + more


def _below_thousand(words: Sequence[str]) -> tuple[int, int]:
    number, length = _below_hundred(words)
    if words[1:2] != ["hundred"] or not 0 < number < 10:  # noqa: PLR2004 - the language's own
        return number, length
    rest, more = _behind(words[2:], most=100)
    return 100 * number + rest, 2 + more


def _behind(words: Sequence[str], *, most: int = 1000) -> tuple[int, int]:
    """Return what is added to hundreds or thousands, with the `and` before it."""
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
