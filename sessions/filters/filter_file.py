"""Reads the file that the setting `filters` names: its words, patterns and hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Annotated
from unicodedata import normalize

import msgspec
import regex
from msgspec import Meta

from sessions.filters.chain import Filters, slices
from sessions.filters.interface import Filter, ReplyFilter
from sessions.filters.patterns import HoldbackFilter, PatternScan, PatternSet, Scan, UnsupportedPattern

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
    """Words and phrases as a tree of their letters. Raises ValueError if one has no visible letters.

    Letters are compared after compatibility decomposition and case folding (Unicode's NFKD and full folding, code
    point by code point). So capitals, full-width and mathematical letters, and ligatures count as plain letters,
    and the encoding of accents makes no difference. Invisible code points (zero-width spaces and joiners, soft
    hyphens, variation selectors) are ignored, and white space of any length counts as one space. Look-alikes of
    other scripts, digits used as letters, and marks out of canonical order are not recognized.

    A word matches only if no letter, digit, mark or connector is beside it. In scripts without spaces between
    words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) it matches anywhere.
    """

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


class MatchLists:
    """Words and patterns to look for. Raises UnsupportedPattern, and ValueError for an empty word."""

    def __init__(self, words: Sequence[str], patterns: Sequence[str], *, max_chars: int) -> None:
        self._scans: list[Callable[[], Scan]] = []
        if words:
            listed = WordList(words)
            self._scans.append(lambda: WordScan(listed))
        if patterns:
            known = PatternSet(patterns, max_chars=max_chars)
            self._scans.append(lambda: PatternScan(known))

    def begin(self) -> HoldbackFilter | None:
        """Return a reader of one text; None if the lists are empty."""
        return HoldbackFilter([make() for make in self._scans]) if self._scans else None


class ListFilter(Filter):
    """Refuses messages with listed words or patterns, and ends such replies."""

    def __init__(self, *, incoming: MatchLists, outgoing: MatchLists) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def refuses(self, message: str) -> bool:
        """See `Filter`. Long messages let other tasks run."""
        reader = self._incoming.begin()
        if reader is None:
            return False
        async for part in slices(message):
            if reader.feed(part).filtered:
                return True
        return reader.finish().filtered

    def reply(self) -> ReplyFilter | None:
        """See `Filter`."""
        return self._outgoing.begin()


MAX_CHARS = 128


class InvalidFilterFile(Exception):
    """The file can't be used. The message tells the operator where, and why."""


class FilterLists(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lists of one direction."""

    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


class FilterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. `max_chars`: the longest match of a pattern, and so the longest text that is held back for one."""

    input: FilterLists = FilterLists()
    output: FilterLists = FilterLists()
    max_chars: Annotated[int, Meta(ge=1, le=1024)] = MAX_CHARS
    hooks: tuple[str, ...] = ()


def filters_from(path: Path) -> Filters:
    """Return the filters of a file, its lists before its hooks. Raises InvalidFilterFile."""
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=FilterFile)
        lists = ListFilter(
            incoming=_lists("input", file.input, file.max_chars),
            outgoing=_lists("output", file.output, file.max_chars),
        )
        return Filters([lists, *(_hook(name) for name in file.hooks)])
    except (OSError, msgspec.DecodeError, InvalidFilterFile) as error:
        raise InvalidFilterFile(f"{path}: {error}") from error


def _lists(name: str, listed: FilterLists, max_chars: int) -> MatchLists:
    """Return one direction's lists. Raises InvalidFilterFile, with the place of the entry."""
    for number, word in enumerate(listed.words):
        try:
            WordList([word])
        except ValueError as error:
            raise InvalidFilterFile(f"{name}.words[{number}] {word!r}: {error}") from None
    for number, pattern in enumerate(listed.patterns):
        try:
            PatternSet([pattern], max_chars=max_chars)
        except UnsupportedPattern as error:
            raise InvalidFilterFile(f"{name}.patterns[{number}] {pattern!r}: {error}") from None
    return MatchLists(listed.words, listed.patterns, max_chars=max_chars)


def _hook(name: str) -> Filter:
    """Return the filter that `package.module:factory` makes. Raises InvalidFilterFile."""
    module, _, factory = name.partition(":")
    try:
        made = getattr(import_module(module), factory)()
    except Exception as error:  # any exception of an operator's code stops the start
        raise InvalidFilterFile(f"hooks: {name!r} fails: {type(error).__name__}: {error}") from error
    if not isinstance(made, Filter):
        raise InvalidFilterFile(f"hooks: {name!r} makes a {type(made).__name__}, which is no Filter.")
    return made
