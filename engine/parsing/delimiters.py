"""Looks for delimiters in text that still grows: the first that is certain, and the place where one may have begun.

`regex` finds a delimiter that may have begun at the end of the text, by its partial matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import regex

from engine.parsing.formats import Delimiter, Region

LONGEST_DELIMITER = 1024
"""The most characters of a delimiter, and so the most that are held back while one may have begun."""


class ActiveDelimiter(NamedTuple):
    """A delimiter that counts now. `region`: what it opens, if anything. `anchored`: it counts only at the text's start."""

    delimiter: Delimiter
    region: Region | None = None
    anchored: bool = False


class SearchResult(NamedTuple):
    """The result of a search. `before`: how many characters are in no delimiter, and in nothing that may become one.

    `match` follows them: the opening or the close of `region`, if it is decided.
    """

    before: int
    match: regex.Match[str] | None = None
    region: Region | None = None


def seek(watched: Sequence[ActiveDelimiter], text: str, *, ended: bool) -> SearchResult:
    """Look for the first of several delimiters. Of those that begin at the same place the longest counts.

    `ended`: no more text comes. A delimiter is undecided while another one may have begun before it.
    """
    best, hold = SearchResult(len(text)), len(text)
    for one in watched:
        match = find(one.delimiter, text, anchored=one.anchored, ended=ended)
        if match is None:
            continue
        if not is_decided(one.delimiter, match, text, ended=ended):
            hold = min(hold, match.start())
        elif match.end() > match.start() and _is_before(match, best.match):
            best = SearchResult(match.start(), match, one.region)
    return best if best.before < hold else SearchResult(hold)


def find(delimiter: Delimiter, text: str, *, anchored: bool = False, ended: bool) -> regex.Match[str] | None:
    """Return the first match of a delimiter. Unless the text has `ended`, that may be a partial match at its end."""
    if anchored:
        match = delimiter.pattern.match(text, partial=not ended)
        return match if match is not None and _is_short(match) else None
    place = 0
    while (match := delimiter.pattern.search(text, place, partial=not ended)) and not _is_short(match):
        place = match.start() + 1
        if match.partial and not delimiter.pattern.search(text, place):
            # A partial match that begins before the last characters is too long as well.
            place = max(place, len(text) - LONGEST_DELIMITER)
    return match


def is_decided(delimiter: Delimiter, match: regex.Match[str], text: str, *, ended: bool) -> bool:
    """Return whether a match stays the same, whatever follows the text."""
    return ended or not (match.partial or (delimiter.grows and match.end() == len(text)))


def _is_short(match: regex.Match[str]) -> bool:
    return match.end() - match.start() <= LONGEST_DELIMITER


def _is_before(match: regex.Match[str], other: regex.Match[str] | None) -> bool:
    return other is None or (match.start(), -match.end()) < (other.start(), -other.end())
