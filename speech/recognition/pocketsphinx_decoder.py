"""Recognition by PocketSphinx, a segment at a time. For the recognizer's process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from pocketsphinx import Decoder, Endpointer

from speech.recognition.messages import Segment, Word
from speech.recognition.numerals import in_digits
from speech.sound.samples import Samples, mono
from speech.sound.wav import Recording

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


class _Spelled(NamedTuple):
    """Words, with numbers in digits, and how many sounds they have."""

    text: str
    phones: int


class PocketSphinxDecoder:
    """The loaded model. Segments leave no state in it: a speaker's loudness is measured anew for each."""

    def __init__(self, grammar: str | None) -> None:
        """Load the model. `grammar`: a JSGF file with everything that can be said; None: English in general."""
        self._has_grammar = grammar is not None
        # The best path of a lattice may end in the middle of a sentence; the grammar's own end may not.
        options = {"jsgf": grammar, "bestpath": False} if grammar else {}
        self._decoder: Any = Decoder(samprate=RATE, loglevel="FATAL", **options)

    def segments(self, recording: Recording) -> Iterator[Segment | None]:
        """Yield the words between two pauses; None if nothing was understood."""
        samples = mono(recording, RATE)
        for start, end in _spoken(samples):
            yield self._recognise(samples[start:end], start / RATE)

    def recognize(self, samples: Samples) -> tuple[str, bool | None, bool, str]:
        """Return the words, one channel at `RATE`, with numbers in digits; empty if nothing was understood.

        The second value: whether a sentence of the grammar ends there; None if that is unknown. The third: whether the
        words are certain. The fourth: certain words of a sentence that can't end there, if nothing else was understood.
        """
        self._decoder.start_utt()
        try:
            self._process(samples)
            so_far = self._spelled()
        finally:
            self._decoder.end_utt()
        spelled = self._spelled()
        if not self._has_grammar:
            return spelled.text, None, spelled.phones >= _SENTENCE_PHONES, ""
        if not so_far.text:  # nothing fitted but the grammar's end
            return "", None, True, ""
        is_whole = spelled.text == so_far.text
        if is_whole:
            return spelled.text, True, spelled.phones >= _SENTENCE_PHONES, ""
        is_certain = so_far.phones >= _BEGINNING_PHONES
        return so_far.text if spelled.text else "", False, is_certain, so_far.text if is_certain else ""

    def _recognise(self, samples: Samples, start_s: float) -> Segment | None:
        length_s = len(samples) / RATE
        so_far: tuple[Word, ...] = ()
        self._decoder.start_utt()
        try:
            self._process(samples)
            if (
                self._has_grammar
            ):  # a recording's pause may cut a sentence, which the grammar's end would complete
                so_far = tuple(self._words(start_s, length_s))
        finally:
            self._decoder.end_utt()
        words = so_far or tuple(self._words(start_s, length_s))
        text = " ".join(word.word for word in words)
        return Segment(round(start_s, 2), round(start_s + length_s, 2), text, words) if words else None

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
