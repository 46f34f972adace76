"""Words of many scripts: where they end, and which scripts put no blanks between them. Pure."""

from __future__ import annotations

import regex

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
