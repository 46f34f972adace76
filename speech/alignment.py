"""Finds each word of a clause in the sound of espeak-ng, by speaking the clause several times: arithmetic on samples.

espeak-ng is used as a program, which reports no events. But it is deterministic, and a command before a word changes only that
word's loudness. Words are numbered from 1 to 7, repeatedly. Each of three further renderings has one of the three bits: it makes
the words with this bit in their number quieter. So the renderings in which a sample differs spell the number of its word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from speech.interfaces import Mark, SpokenClause

Samples = npt.NDArray[np.int16]
BITS = 3
_NUMBERS = (1 << BITS) - 1
_LOUD, _QUIET = 100, 60
"""The program's usual loudness, and one that changes every audible sample."""
_WORD = re.compile(r"\S+")


class Word(NamedTuple):
    """A word of a text, with adjoining characters other than white space."""

    off: int
    text: str

    @property
    def end(self) -> int:
        """The offset after the word."""
        return self.off + len(self.text)


def words_of(text: str) -> list[Word]:
    """Return the words. A part without letters and digits makes no sound, and belongs to the word before."""
    words: list[Word] = []
    for found in _WORD.finditer(text):
        is_spoken = any(one.isalnum() for one in found[0])
        if words and (not is_spoken or not any(one.isalnum() for one in words[-1].text)):
            first = words.pop()
            words.append(Word(first.off, text[first.off : found.end()]))
        else:
            words.append(Word(found.start(), found[0]))
    return words


def texts_of(words: Sequence[str]) -> list[str]:
    """Return the texts of the whole sound and of the renderings, with loudness commands at the same places in all.

    The commands are those of espeak-ng's docs/markup.md.
    """
    return [
        " ".join(f"\x01{_loudness(place, bit)}A{word}" for place, word in enumerate(words))
        for bit in (None, *range(BITS))
    ]


def _loudness(place: int, bit: int | None) -> int:
    """Return how loud a word is in the rendering of a bit; None: in the whole sound."""
    return _QUIET if bit is not None and (place % _NUMBERS + 1) >> bit & 1 else _LOUD


def clause_of(words: Sequence[Word], sounds: Sequence[tuple[int, bytes]]) -> SpokenClause:
    """Return a clause with the times of its words. `sounds`: of `texts_of(words)`, each with its rate."""
    rate, pcm = sounds[0]
    whole, *renderings = (np.frombuffer(sound, "<i2") for _, sound in sounds)
    return SpokenClause(rate, pcm, marks_of(words, rate, whole, renderings))


def marks_of(
    words: Sequence[Word], rate: int, whole: Samples, renderings: Sequence[Samples]
) -> tuple[Mark, ...] | None:
    """Return the times of the words; None if the renderings do not show them.

    `renderings`: one for each of the `BITS`. Words that the program joins ("I am") count as one.
    """
    if any(len(one) != len(whole) for one in renderings):
        return None
    numbers = np.zeros(len(whole), np.int8)
    for bit, rendering in enumerate(renderings):
        numbers |= (whole != rendering).astype(np.int8) << bit
    groups = list(_groups(numbers))
    marks: list[Mark] = []
    place = 0
    for at, (number, start, end) in enumerate(groups, 1):
        behind = len(words) if at == len(groups) else place + _distance(number, groups[at][0])
        if not place < behind <= min(len(words), place + _NUMBERS - 1):
            return None
        off, until = words[place].off, words[behind - 1].end
        start_ms, end_ms = start * 1000 // rate, -(-end * 1000 // rate)
        marks.append(Mark(off=off, len=until - off, start_ms=start_ms, end_ms=end_ms))
        place = behind
    return tuple(marks) if place == len(words) else None


def _distance(number: int, following: int) -> int:
    """Return how many words later the next number is."""
    return (following - number) % _NUMBERS


def _groups(numbers: npt.NDArray[np.int8]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of samples with one number: the number, the first sample, and the end. Silence has no number."""
    places = np.flatnonzero(numbers)
    if not len(places):
        return
    spelled = numbers[places]
    seams = np.flatnonzero(np.diff(spelled)) + 1
    starts = [0, *seams.tolist(), len(places)]
    for first, behind in pairwise(starts):
        yield int(spelled[first]), int(places[first]), int(places[behind - 1]) + 1
