"""Finds listed words and phrases in a text, in many spellings. Pure.

Letters are compared after compatibility decomposition and case folding (Unicode's NFKD and full folding, code
point by code point). So capitals, full-width and mathematical letters, and ligatures count as plain letters,
and the encoding of accents makes no difference. Invisible code points (zero-width spaces and joiners, soft
hyphens, variation selectors) are ignored, and white space of any length counts as one space. Look-alikes of
other scripts, digits used as letters, and marks out of canonical order are not recognized.

A word matches only if no letter, digit, mark or connector is beside it. In scripts without spaces between
words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) it matches anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from unicodedata import normalize

import msgspec
import regex

_SPACED = regex.compile(
    r"[[\p{L}\p{N}\p{M}\p{Pc}]--[\p{Line_Break=SA}\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}]]",
    regex.V1,
)
_MARK = regex.compile(r"\p{M}")
_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")
_ROOT = 0


class _Point(msgspec.Struct, frozen=True, gc=False):
    """A code point as it is compared. `spaced`: its script has spaces between words."""

    char: str
    spaced: bool
    mark: bool


_NOTHING = _Point(" ", spaced=False, mark=False)


@lru_cache(maxsize=8192)
def _folded(char: str) -> tuple[_Point, ...]:
    if _INVISIBLE.match(char):
        return ()
    folded = normalize("NFKD", normalize("NFKD", char).casefold())
    return tuple(
        _Point(" " if one.isspace() else one, bool(_SPACED.match(one)), bool(_MARK.match(one)))
        for one in folded
    )


class WordList:
    """Words and phrases as a tree of their letters. Raises ValueError if one has no visible letters."""

    def __init__(self, words: Iterable[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._ends: set[int] = set()
        for word in words:
            self._add(word)

    def _add(self, word: str) -> None:
        points = [point for char in " ".join(word.split()) for point in _folded(char)]
        if not points:
            raise ValueError("There is nothing to see in it.")
        node = _ROOT
        for point in points:
            known = self._children[node].setdefault(point.char, len(self._children))
            if known == len(self._children):
                self._children.append({})
            node = known
        self._ends.add(node)

    def child(self, node: int, char: str) -> int | None:
        """Return the node that a letter leads to from a node (0: the root), or None."""
        return self._children[node].get(char)

    def is_word(self, node: int) -> bool:
        """Return whether a word ends at a node."""
        return node in self._ends


class WordScan:
    """A `Scan` for words: current nodes of the tree, each with the beginning of its match, the first match first."""

    __slots__ = ("_last", "_starts", "_words")

    def __init__(self, words: WordList) -> None:
        self._words = words
        self._starts: dict[int, int] = {}
        self._last = _NOTHING

    @property
    def earliest(self) -> int | None:
        """See `Scan`."""
        return next(iter(self._starts.values()), None)

    def step(self, at: int, char: str) -> bool:
        """See `Scan`."""
        for point in _folded(char):  # noqa: SIM110 - three times faster than any()
            if self._take(at, point):
                return True
        return False

    def end(self) -> bool:
        """See `Scan`."""
        return any(self._words.is_word(node) for node in self._starts)

    def _take(self, at: int, point: _Point) -> bool:
        """Read one folded code point; return whether it completes a word: the code point after a word shows its end."""
        last, self._last = self._last, point
        if point.char == last.char == " ":
            return False  # a run of white space counts once
        apart = not (point.mark or (point.spaced and last.spaced))
        if apart and self._starts and self.end():
            return True
        following = {}
        for node, start in self._starts.items():
            if (child := self._words.child(node, point.char)) is not None:
                following[child] = start
        if apart and (child := self._words.child(_ROOT, point.char)) is not None:
            following[child] = at
        self._starts = following
        return False
