"""Sentences and words of any script: where a growing source is divided, and how translations are joined. Pure."""

from __future__ import annotations

import msgspec
import regex

from engine.text.detokenizer import floor_boundary

_SPACELESS = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
    r"\u3001-\u303f\u30fc\uff01-\uff65"
)
"""Scripts that put no blanks between words, and East Asian punctuation."""
_UNIT = regex.compile(rf"\s*(?:[{_SPACELESS}]\p{{M}}*+|[^\s{_SPACELESS}]++)")
_OPEN_WORD = regex.compile(rf"(?V1)[[\p{{L}}\p{{M}}\p{{N}}\p{{Pc}}'\u2019\-]--[{_SPACELESS}]]+\Z")
_IS_SPACELESS = regex.compile(rf"[{_SPACELESS}]")
SENTENCE_ENDS = frozenset(".!?…。！？｡．؟۔।॥։።။៕")  # noqa: RUF001 - of all scripts
"""Marks that end a sentence."""
ENDS_AT_ONCE = SENTENCE_ENDS - frozenset(".!?…")
"""Marks that end a sentence even without a blank after them."""

CLOSERS = frozenset("\"'”’»)]}」』）】〉》")  # noqa: RUF001 - of all scripts
"""Characters that may follow such a mark and belong to its sentence."""
_CLOSING = "".join(sorted(CLOSERS))


def units(text: str) -> list[str]:
    """Return the words of a text, each with the white space before it; in scripts without blanks, the characters."""
    found: list[str] = _UNIT.findall(text)
    return found


def whole_units(text: str, *, finished: bool) -> list[str]:
    """Return the units that will not change when more text follows; of a `finished` text, all."""
    found = units(text)
    if found and not finished and text[-1:].strip() and not is_spaceless(found[-1][-1:]):
        found.pop()
    return found


def whole_words(text: str) -> int:
    """Return the length of the text without an unfinished word at its end."""
    unfinished = _OPEN_WORD.search(text)
    return len(text) if unfinished is None else unfinished.start()


def is_spaceless(character: str) -> bool:
    """Return whether a character belongs to a script without blanks between words."""
    return _IS_SPACELESS.match(character) is not None


def ends_a_sentence(text: str) -> bool:
    """Return whether a text ends as a sentence does."""
    bare = text.rstrip().rstrip(_CLOSING)
    return bool(bare) and bare[-1] in SENTENCE_ENDS


def joint(before: str, skipped: str) -> str:
    """Return the separator between the translations of two segments, for the white space between the segments.

    `before`: the text so far. A new line in the source begins a new line in the target.
    """
    if not before:
        return ""
    if lines := skipped.count("\n"):
        return "\n" * min(lines, 2)
    return "" if ends_a_sentence(before) and is_spaceless(before[-1]) else " "


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
