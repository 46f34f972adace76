"""Divides a growing text into clauses to speak, each as soon as it is complete. Pure.

A clause keeps its offset in the text, so that a position in its sound can be converted to an offset in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

LONGEST = 240
"""The most characters of a clause. A longer one is split between words; a word that is longer itself is split, too."""
SHORTEST_PART = 24
"""A comma splits a sentence only after this many characters: shorter parts sound disjointed."""
_ENDS = re.compile("[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019)\\]]*(?=\\s)|[\u3002\uff01\uff1f]|\\n")
_PARTS = re.compile("[,;:](?=\\s)| [\u2013\u2014-](?=\\s)")
_SPACE = re.compile(r"\s")


class Clause(msgspec.Struct, frozen=True):
    """A part of a text. `off`: the characters before it."""

    off: int
    text: str

    @property
    def end(self) -> int:
        """The offset of its end."""
        return self.off + len(self.text)


class Clauses:
    """The clauses of one text."""

    def __init__(self) -> None:
        self._off = 0
        self._rest = ""

    def feed(self, text: str) -> Iterator[Clause]:
        """Take more text, and yield the clauses that it completes. The iterator must be exhausted."""
        self._rest += text
        while (size := _size(self._rest)) is not None:
            yield from self._take(size)

    def finish(self) -> Iterator[Clause]:
        """Yield the clauses of the remaining text."""
        while len(self._rest) > LONGEST:
            yield from self._take(_parted(self._rest))
        yield from self._take(len(self._rest))

    def _take(self, size: int) -> Iterator[Clause]:
        clause = Clause(self._off, self._rest[:size])
        self._off, self._rest = clause.end, self._rest[size:]
        if clause.text.strip():
            yield clause


def _size(text: str) -> int | None:
    """Return the length of the first clause; None if it may still grow."""
    if (end := _ENDS.search(text, 0, LONGEST)) is not None:
        return end.end()
    for part in _PARTS.finditer(text, SHORTEST_PART, LONGEST):
        return part.end()
    return _parted(text) if len(text) > LONGEST else None


def _parted(text: str) -> int:
    spaces = list(_SPACE.finditer(text, 1, LONGEST))
    return spaces[-1].start() if spaces else LONGEST
