"""Converts English numbers in words to digits, for recognizers that write only words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

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
"""Without another number beside it, it may be a pronoun, and stays a word."""


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
