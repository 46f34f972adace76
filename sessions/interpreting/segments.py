"""Divides a growing text into segments: sentences, as far as they are known, and pieces of bounded length. Pure."""

from __future__ import annotations

import msgspec

from engine.text.characters import floor_boundary
from sessions.interpreting.scripts import CLOSERS, ENDS_AT_ONCE, SENTENCE_ENDS

MAX_SEGMENT_CHARS = 400
"""A longer sentence is divided at a blank, or within a word if it has none."""
_ABBREVIATIONS = frozenset({"mr", "mrs", "ms", "dr", "prof", "st", "vs"})


class Segment(msgspec.Struct, frozen=True):
    """A part of a source, without the white space around it. `is_closed`: it does not change any more."""

    start: int
    end: int
    is_closed: bool


def next_segment(source: str, start: int, *, final: bool) -> Segment | None:
    """Return the segment that begins after `start`; None if only white space follows.

    `final`: the source does not grow any more. Until then a sentence is closed by the text after it: a full
    stop may turn out to be a decimal point.
    """
    while start < len(source) and source[start].isspace():
        start += 1
    if start == len(source):
        return None
    until = min(len(source), start + MAX_SEGMENT_CHARS)
    end = _sentence_end(source, start, until, final=final)
    if end is not None:
        return Segment(start, end, is_closed=True)
    if until < len(source):
        return Segment(start, _parting(source, start, until), is_closed=True)
    return Segment(start, start + len(source[start:].rstrip()), is_closed=final)


def _sentence_end(source: str, start: int, until: int, *, final: bool) -> int | None:
    place = start
    while place < until:
        character = source[place]
        if character == "\n":
            return start + len(source[start:place].rstrip())
        if character in SENTENCE_ENDS:
            after = _after_marks(source, place, until)
            if _is_end(source, start, place, after, final=final):
                return after
            place = after
        else:
            place += 1
    return None


def _after_marks(source: str, place: int, until: int) -> int:
    while place < until and (source[place] in SENTENCE_ENDS or source[place] in CLOSERS):
        place += 1
    return place


def _is_end(source: str, start: int, place: int, after: int, *, final: bool) -> bool:
    """Return whether the marks from `place` to `after` end a sentence, by the characters around them."""
    if after == len(source):
        return final
    if any(mark in ENDS_AT_ONCE for mark in source[place:after]):
        return True
    return source[after].isspace() and not _is_abbreviation(source, start, place)


def _is_abbreviation(source: str, start: int, place: int) -> bool:
    if source[place] != ".":
        return False
    word = source[start:place].split()[-1:]
    last = word[0].strip("(\"'").lower() if word else ""
    return last in _ABBREVIATIONS or (len(last) == 1 and last.isalpha() and last != "i")


def _parting(source: str, start: int, until: int) -> int:
    """Return where to divide a long sentence: after a word, else after a whole character."""
    blank = max((place for place in range(start + 1, until) if source[place].isspace()), default=None)
    if blank is not None:
        return start + len(source[start:blank].rstrip())
    parted = floor_boundary(source, until)
    return parted if parted > start else until
