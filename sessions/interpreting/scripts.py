"""Words of many scripts: where they end, and which scripts put no blanks between them. Pure."""

from __future__ import annotations

import regex

_SPACELESS = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
    r"\u3001-\u303f\u30fc\uff01-\uff65"
)
"""Scripts that put no blanks between words, and the punctuation of East Asia."""
_UNIT = regex.compile(rf"\s*(?:[{_SPACELESS}]\p{{M}}*+|[^\s{_SPACELESS}]++)")
_OPEN_WORD = regex.compile(rf"(?V1)[[\p{{L}}\p{{M}}\p{{N}}\p{{Pc}}'\u2019\-]--[{_SPACELESS}]]+\Z")
_IS_SPACELESS = regex.compile(rf"[{_SPACELESS}]")
SENTENCE_ENDS = frozenset(".!?…。！？｡．؟۔।॥։።။៕")  # noqa: RUF001 - of all scripts
"""Marks that end a sentence."""
ENDS_AT_ONCE = SENTENCE_ENDS - frozenset(".!?…")
"""Those of them behind which no blank is needed."""

CLOSERS = frozenset("\"'”’»)]}」』）】〉》")  # noqa: RUF001 - of all scripts
"""What may stand behind such a mark and belongs to its sentence."""
_CLOSING = "".join(sorted(CLOSERS))


def units(text: str) -> list[str]:
    """Return the words of a text, each with the white space before it; of scripts without blanks, the characters."""
    found: list[str] = _UNIT.findall(text)
    return found


def whole_units(text: str, *, finished: bool) -> list[str]:
    """Return the units that stay as they are when more text comes; of a `finished` text that is all of them."""
    found = units(text)
    if found and not finished and text[-1:].strip() and not is_spaceless(found[-1][-1:]):
        found.pop()
    return found


def whole_words(text: str) -> int:
    """Return how long the beginning of a text is that has no unfinished word at its end."""
    unfinished = _OPEN_WORD.search(text)
    return len(text) if unfinished is None else unfinished.start()


def is_spaceless(character: str) -> bool:
    """Tell whether a character is of a script that puts no blanks between words."""
    return _IS_SPACELESS.match(character) is not None


def ends_a_sentence(text: str) -> bool:
    """Tell whether a text ends as a sentence does."""
    bare = text.rstrip().rstrip(_CLOSING)
    return bool(bare) and bare[-1] in SENTENCE_ENDS


def joint(before: str, skipped: str) -> str:
    """Return what stands between the translations of two segments, by the white space that stood between these.

    `before`: the text so far. A line of the source begins a line of the target.
    """
    if not before:
        return ""
    if lines := skipped.count("\n"):
        return "\n" * min(lines, 2)
    return "" if ends_a_sentence(before) and is_spaceless(before[-1]) else " "
