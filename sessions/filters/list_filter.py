"""The filter of an operator's lists: words and patterns, looked for in a text piece by piece. What may still match is held back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import import_module
from time import process_time
from typing import Annotated, Any, Protocol
from unicodedata import normalize

import msgspec
import regex
from msgspec import Meta

from engine.text.detokenizer import floor_boundary
from sessions.filters.chain import Filter, Filters, Passed, ReplyFilter, slices

MAX_CHARS = 128
TIMEOUT_S = 0.1
"""Seconds of CPU time for the searches of one piece of text. A text that takes longer is filtered: a harmless one could hide a match."""
ROOT = 0
_SPACED = regex.compile(
    r"[[\p{L}\p{N}\p{M}\p{Pc}]--[\p{Line_Break=SA}\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}]]",
    regex.V1,
)
_MARK = regex.compile(r"\p{M}")
_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")
_PART = regex.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[$^]|.", regex.DOTALL)
"""A part of a pattern: an escape, a character class, an assertion, or another character."""
_ASSERTIONS = {"^", "$", r"\b", r"\B", r"\m", r"\M", r"\Z", r"\z"}
_LOOKAROUND = regex.compile(r"\(\?<?[=!]")


class FilterLists(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lists for messages, or those for replies."""

    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


NOTHING = FilterLists()


class InvalidFilters(Exception):
    """The filters can't be used. The message tells the operator where, and why."""


class FilterOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's table. `max_chars`: the longest match of a pattern that is found, and so the longest text that is held back for one."""

    input: FilterLists = NOTHING
    output: FilterLists = NOTHING
    max_chars: Annotated[int, Meta(ge=1, le=1024)] = MAX_CHARS
    hooks: tuple[str, ...] = ()


def filters_from(table: Any) -> Filters:
    """Return the filters of an operator's table, its lists before its hooks. Raises InvalidFilters."""
    try:
        options = msgspec.convert(table, FilterOptions)
    except msgspec.ValidationError as error:
        raise InvalidFilters(str(error)) from error
    incoming, outgoing = (_checked(name, getattr(options, name), options) for name in ("input", "output"))
    lists = list_filters(incoming=incoming, outgoing=outgoing, max_chars=options.max_chars)
    return Filters([*lists, *(_hook(name) for name in options.hooks)])


def _checked(name: str, listed: FilterLists, options: FilterOptions) -> FilterLists:
    """Return the lists of `name` (`input`, `output`). Raises InvalidFilters, with the place of the entry."""
    for number, word in enumerate(listed.words):
        try:
            WordList([word])
        except ValueError as error:
            raise InvalidFilters(f"{name}.words[{number}] {word!r}: {error}") from None
    for number, pattern in enumerate(listed.patterns):
        try:
            PatternSet([pattern], max_chars=options.max_chars)
        except UnsupportedPattern as error:
            raise InvalidFilters(f"{name}.patterns[{number}] {pattern!r}: {error}") from None
    return listed


def list_filters(
    *,
    incoming: FilterLists = NOTHING,
    outgoing: FilterLists = NOTHING,
    max_chars: int = MAX_CHARS,
) -> list[Filter]:
    """Return a filter for words, and one for patterns. Raises UnsupportedPattern, and ValueError for an empty word."""
    words = (WordList(lists.words) if lists.words else None for lists in (incoming, outgoing))
    patterns = (
        PatternSet(lists.patterns, max_chars=max_chars) if lists.patterns else None
        for lists in (incoming, outgoing)
    )
    return [ListFilter(*words), ListFilter(*patterns)]


def _hook(name: str) -> Filter:
    """Return the filter that `package.module:factory` makes. Raises InvalidFilters."""
    module, _, factory = name.partition(":")
    try:
        made = getattr(import_module(module), factory)()
    except Exception as error:  # any exception of an operator's code stops the start
        raise InvalidFilters(f"hooks: {name!r} fails: {type(error).__name__}: {error}") from error
    if not isinstance(made, Filter):
        raise InvalidFilters(f"hooks: {name!r} makes a {type(made).__name__}, which is not a Filter.")
    return made


class Matcher(Protocol):
    """What a text is searched for."""

    def begin(self) -> ReplyFilter:
        """Return a reader of one text. How the text is divided makes no difference to it."""
        ...


class ListFilter(Filter):
    """Refuses messages in which something is found, and ends replies where something is found. None: nothing is looked for."""

    def __init__(self, incoming: Matcher | None, outgoing: Matcher | None) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def refuses(self, message: str) -> bool:
        """See `Filter`. Long messages let other tasks run."""
        if self._incoming is None:
            return False
        reader = self._incoming.begin()
        async for part in slices(message):
            if reader.feed(part).filtered:
                return True
        return reader.finish().filtered

    def reply(self) -> ReplyFilter | None:
        """See `Filter`."""
        return None if self._outgoing is None else self._outgoing.begin()


class HoldbackFilter:
    """A reply's filter. `waiting`: the held text; it begins with the first match that is still possible.

    When a match is complete, all held text is dropped, even the beginning of a longer match around it.
    """

    def __init__(self) -> None:
        self.waiting = ""
        self.passed = 0
        """Characters before the held text."""
        self.before = ""
        """The last of them."""
        self._filtered = False

    def feed(self, text: str) -> Passed:
        """See `ReplyFilter`."""
        if not self._filtered:
            self._filtered = self.read(text)
        free = floor_boundary(self.waiting, self.first_possible())
        text, self.waiting = self.waiting[:free], self.waiting[free:]
        self.passed += free
        self.before = text[-1:] or self.before
        return Passed(text, self._filtered)

    def finish(self) -> Passed:
        """See `ReplyFilter`."""
        self._filtered = self._filtered or self.ends()
        if self._filtered:
            return self.feed("")
        text, self.waiting = self.waiting, ""
        return Passed(text)

    def read(self, text: str) -> bool:
        """Add a text to the held one, up to the end of the first match; return whether there is one."""
        raise NotImplementedError

    def first_possible(self) -> int:
        """Return where in the held text the first match begins that is complete or possible; its length if there is none."""
        raise NotImplementedError

    def ends(self) -> bool:
        """Return whether the end of the text completes a match."""
        raise NotImplementedError


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
        node = ROOT
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

    def begin(self) -> WordFilter:
        """See `Matcher`."""
        return WordFilter(self)


class WordFilter(HoldbackFilter):
    """A filter for words: current nodes of the tree, each with the beginning of its match, the first match first."""

    def __init__(self, words: WordList) -> None:
        super().__init__()
        self._words = words
        self._starts: dict[int, int] = {}
        self._last = _NOTHING

    def read(self, text: str) -> bool:
        """See `HoldbackFilter`."""
        at = self.passed + len(self.waiting)
        for number, char in enumerate(text):
            for point in _folded(char):
                if self._take(at + number, point):
                    self.waiting += text[: number + 1]
                    return True
        self.waiting += text
        return False

    def first_possible(self) -> int:
        """See `HoldbackFilter`."""
        first = next(iter(self._starts.values()), None)
        return len(self.waiting) if first is None else first - self.passed

    def ends(self) -> bool:
        """See `HoldbackFilter`."""
        return any(self._words.is_word(node) for node in self._starts)

    def _take(self, at: int, point: _Point) -> bool:
        """Read one folded code point; return whether it completes a word: the code point after a word shows its end."""
        last, self._last = self._last, point
        if point.char == last.char == " ":
            return False  # a run of white space counts once
        apart = not (point.mark or (point.spaced and last.spaced))
        if apart and self._starts and self.ends():
            return True
        following = {}
        for node, start in self._starts.items():
            if (child := self._words.child(node, point.char)) is not None:
                following[child] = start
        if apart and (child := self._words.child(ROOT, point.char)) is not None:
            following[child] = at
        self._starts = following
        return False


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


class UnsupportedPattern(ValueError):
    """A pattern can't be used. The message says why."""


class PatternSet:
    """Patterns in the syntax of the package `regex`, which has that of `re`; `^` and `$` match at the ends of lines.

    Only matches of 1 to `max_chars` characters are found. Raises UnsupportedPattern.
    """

    def __init__(self, patterns: Iterable[str], *, max_chars: int) -> None:
        self.patterns = [Pattern(pattern) for pattern in patterns]
        self.max_chars = max_chars

    def begin(self) -> PatternFilter:
        """See `Matcher`."""
        return PatternFilter(self)


class Pattern:
    """A compiled pattern. `needs_next`: a match may depend on the character after it."""

    def __init__(self, pattern: str) -> None:
        parts = _PART.findall(pattern)
        if _LOOKAROUND.search("".join(part for part in parts if len(part) == 1)):
            raise UnsupportedPattern("Looking around, as in (?=…) and (?<!…), can't be used here.")
        # the end of the text so far says nothing: whatever is asserted there may be so
        unsure = "".join(rf"(?:{part}|\Z)" if part in _ASSERTIONS else part for part in parts)
        try:
            self.regex, self._unsure = (regex.compile(one, regex.MULTILINE) for one in (pattern, unsure))
        except (regex.error, ValueError, RecursionError, OverflowError) as error:
            raise UnsupportedPattern(f"It is not a regular expression: {error}.") from None
        if any(not found[0] for found in self.regex.finditer("\na.a\n", overlapped=True)) or self.regex.match(
            ""
        ):
            raise UnsupportedPattern("It matches the empty text.")
        self.needs_next = not _ASSERTIONS.isdisjoint(parts)

    def first_possible(self, text: str, start: int, left: Callable[[], float]) -> int:
        """Return where the first match begins that is whole, or that more text may complete; the text's length if there is none.

        `left`: returns the seconds that are left. Raises TimeoutError.
        """
        found = self._unsure.search(text, start, partial=True, timeout=left())
        if found is None or found.partial:
            return len(text) if found is None else found.start()
        # `search` prefers a whole match to a partial one before it
        places = range(start, found.start())
        earlier = (place for place in places if self._unsure.match(text, place, partial=True, timeout=left()))
        return next(earlier, found.start())


class PatternFilter(HoldbackFilter):
    """A filter for patterns. If a search takes too long, the text ends there."""

    def __init__(self, patterns: PatternSet) -> None:
        super().__init__()
        self._patterns = patterns.patterns
        self._max_chars = patterns.max_chars
        self._until = 0.0

    def feed(self, text: str) -> Passed:
        """See `ReplyFilter`."""
        self._until = process_time() + TIMEOUT_S
        try:
            return super().feed(text)
        except TimeoutError:
            return self._give_up()

    def finish(self) -> Passed:
        """See `ReplyFilter`."""
        self._until = process_time() + TIMEOUT_S
        try:
            return super().finish()
        except TimeoutError:
            return self._give_up()

    def _left(self) -> float:
        if (left := self._until - process_time()) <= 0:
            raise TimeoutError
        return left

    def _give_up(self) -> Passed:
        self.waiting, self._filtered = "", True
        return Passed("", filtered=True)

    def read(self, text: str) -> bool:
        """See `HoldbackFilter`."""
        known, start = self.before + self.waiting + text, len(self.before)
        if any(one.regex.search(known, start, timeout=self._left()) for one in self._patterns):
            return any(self._read_char(char) for char in text)  # rare: find out where the first match ends
        self.waiting += text
        return False

    def _read_char(self, char: str) -> bool:
        self.waiting += char
        return self._has_match(is_whole=False)

    def first_possible(self) -> int:
        """See `HoldbackFilter`."""
        known, start = self._known()
        first = min(one.first_possible(known, start, self._left) for one in self._patterns)
        return first - len(self.before)

    def ends(self) -> bool:
        """See `HoldbackFilter`."""
        return self._has_match(is_whole=True)

    def _has_match(self, *, is_whole: bool) -> bool:
        """Return whether a match is complete, whatever follows unless the text is whole."""
        known, start = self._known()
        return any(
            0 < found.end() - found.start() <= self._max_chars
            and (is_whole or found.end() < len(known) or not one.needs_next)
            for one in self._patterns
            for found in one.regex.finditer(known, start, overlapped=True, timeout=self._left())
        )

    def _known(self) -> tuple[str, int]:
        """Return the text, and where the first match may begin."""
        dropped = max(
            len(self.waiting) - self._max_chars - 1, 0
        )  # one more: it may show that a match has ended
        return self.before + self.waiting, len(self.before) + dropped
