"""Where each word of a clause lies in its sound, by speaking the clause several times: pure arithmetic on samples.

espeak-ng is a program: it tells no events. But it is deterministic, and a command before a word sets that word's loudness and
changes no duration. Words are numbered from 1 to 7 and again from 1. In each of three further renderings those words are
quieter whose number has one of its three bits: so the samples that differ spell the number of the word that they belong to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from speech.contract import Mark

Samples = npt.NDArray[np.int16]
BITS = 3
_NUMBERS = (1 << BITS) - 1
_WORD = re.compile(r"\S+")


class Word(NamedTuple):
    """A word of a text, with what stands at it without white space."""

    off: int
    text: str

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.off + len(self.text)


def words_of(text: str) -> list[Word]:
    """Return the words. What has neither letters nor digits makes no sound: it belongs to the word before."""
    words: list[Word] = []
    for found in _WORD.finditer(text):
        is_spoken = any(one.isalnum() for one in found[0])
        if words and (not is_spoken or not any(one.isalnum() for one in words[-1].text)):
            first = words.pop()
            words.append(Word(first.off, text[first.off : found.end()]))
        else:
            words.append(Word(found.start(), found[0]))
    return words


def quieter(place: int, bit: int) -> bool:
    """Whether the word of a place is quieter in the rendering of a bit."""
    return bool((place % _NUMBERS + 1) >> bit & 1)


def marks_of(
    words: Sequence[Word], rate: int, whole: Samples, renderings: Sequence[Samples]
) -> tuple[Mark, ...] | None:
    """Return when each word is heard; None where the renderings do not show it.

    `renderings`: one for each of the `BITS`. Words that the program speaks as one ("I am") are one.
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
    """Return how many words on the next one is."""
    return (following - number) % _NUMBERS


def _groups(numbers: npt.NDArray[np.int8]) -> Iterator[tuple[int, int, int]]:
    """Yield the runs of samples of one number: it, the first sample, and the one behind the last. Silence has no number."""
    places = np.flatnonzero(numbers)
    if not len(places):
        return
    spelled = numbers[places]
    seams = np.flatnonzero(np.diff(spelled)) + 1
    starts = [0, *seams.tolist(), len(places)]
    for first, behind in pairwise(starts):
        yield int(spelled[first]), int(places[first]), int(places[behind - 1]) + 1
