"""The filter of an operator's lists: words and patterns, looked for in a text piece by piece. What may still match is held back.

A pattern has `re`'s syntax, if a match has a known maximum length: no unbounded repeats, lookaround or back references. The
matches are those of `re`, but the algorithm is another (K. Thompson, "Regular expression search algorithm",
CACM 11 (6), 1968). The work for each character is bounded by the size of the patterns, and it is known at
each character whether a match is still possible. Backtracking engines offer neither; RE2 offers only the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any, Protocol
from unicodedata import normalize

import msgspec
import regex
from msgspec import Meta

from engine.text.detokenizer import floor_boundary
from sessions.filters.chain import Filter, Filters, Passed, ReplyFilter, slices

MAX_CHARS = 128
MOST_EDGES = 20_000
"""Edges of one pattern's automaton; each copy of a repeated part has its own."""
MOST_KNOWN = 16_384
"""Transitions that are remembered."""
ROOT = 0
"""The root of a tree, and the state where every match begins."""
_SPACED = regex.compile(
    r"[[\p{L}\p{N}\p{M}\p{Pc}]--[\p{Line_Break=SA}\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}]]",
    regex.V1,
)
_MARK = regex.compile(r"\p{M}")
_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}")
_parser: Any = re._parser  # type: ignore[attr-defined] # noqa: SLF001 - `re` has no public parser
_compiler: Any = re._compiler  # type: ignore[attr-defined] # noqa: SLF001 - nor public character classes, with case


class FilterLists(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lists for messages, or those for replies."""

    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


class InvalidFilters(Exception):
    """The filters can't be used. The message tells the operator where, and why."""


class FilterOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's table. `max_chars`: the longest match of a pattern, and so the longest text that is held back for one."""

    input: FilterLists = FilterLists()
    output: FilterLists = FilterLists()
    max_chars: Annotated[int, Meta(ge=1, le=1024)] = MAX_CHARS
    hooks: tuple[str, ...] = ()


def filters_from(table: Any) -> Filters:
    """Return the filters of an operator's table, its lists before its hooks. Raises InvalidFilters."""
    try:
        options = msgspec.convert(table, FilterOptions)
    except msgspec.ValidationError as error:
        raise InvalidFilters(str(error)) from error
    lists = ListFilter(
        incoming=_lists("input", options.input, options.max_chars),
        outgoing=_lists("output", options.output, options.max_chars),
    )
    return Filters([lists, *(_hook(name) for name in options.hooks)])


def _lists(name: str, listed: FilterLists, max_chars: int) -> MatchLists:
    """Return the lists of `name` (`input`, `output`). Raises InvalidFilters, with the place of the entry."""
    for number, word in enumerate(listed.words):
        try:
            WordList([word])
        except ValueError as error:
            raise InvalidFilters(f"{name}.words[{number}] {word!r}: {error}") from None
    for number, pattern in enumerate(listed.patterns):
        try:
            PatternSet([pattern], max_chars=max_chars)
        except UnsupportedPattern as error:
            raise InvalidFilters(f"{name}.patterns[{number}] {pattern!r}: {error}") from None
    return MatchLists(listed.words, listed.patterns, max_chars=max_chars)


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


class ListFilter(Filter):
    """Refuses messages with listed words or patterns, and ends replies with such."""

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


class Scan(Protocol):
    """Looks for matches in a text, character by character."""

    @property
    def earliest(self) -> int | None:
        """The beginning of the first match that is complete or still possible; None if there is none."""
        ...

    def step(self, at: int, char: str) -> bool:
        """Read the next character, at this offset; return whether it completes a match."""
        ...

    def end(self) -> bool:
        """End the text; return whether that completes a match."""
        ...


class HoldbackFilter:
    """A reply's filter over scans.

    The held text begins with the first match that is still possible. When one is complete, all held text is dropped,
    even the beginning of a longer match around it.
    """

    __slots__ = ("_filtered", "_offset", "_scans", "_waiting")

    def __init__(self, scans: Sequence[Scan]) -> None:
        self._scans = scans
        self._waiting = ""
        self._offset = 0  # of the held text
        self._filtered = False

    def feed(self, text: str) -> Passed:
        """See `ReplyFilter`. How the text is divided makes no difference."""
        if not self._filtered:
            read = self._read(text, self._offset + len(self._waiting))
            self._filtered = read is not None
            self._waiting += text[:read]
        return self._pass()

    def finish(self) -> Passed:
        """See `ReplyFilter`."""
        self._filtered = self._filtered or any(scan.end() for scan in self._scans)
        if self._filtered:
            return self._pass()
        text, self._waiting = self._waiting, ""
        return Passed(text)

    def _read(self, text: str, at: int) -> int | None:
        """Read up to the end of the first match; return the number of characters read, None if there is no match."""
        for number, char in enumerate(text):
            for scan in self._scans:
                if scan.step(at + number, char):
                    return number + 1
        return None

    def _pass(self) -> Passed:
        starts = [start for scan in self._scans if (start := scan.earliest) is not None]
        free = min(starts) - self._offset if starts else len(self._waiting)
        free = floor_boundary(self._waiting, free)
        text, self._waiting = self._waiting[:free], self._waiting[free:]
        self._offset += free
        return Passed(text, self._filtered)


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


class PatternScan:
    """A `Scan` for patterns: the current states, each with the beginning of its match, the first match first."""

    __slots__ = ("_before", "_live", "_patterns")

    def __init__(self, patterns: PatternSet) -> None:
        self._patterns = patterns
        self._live: dict[int, int] = {}
        self._before = Before.NOTHING

    @property
    def earliest(self) -> int | None:
        """See `Scan`."""
        return next(iter(self._live.values()), None)

    def step(self, at: int, char: str) -> bool:
        """See `Scan`."""
        following: dict[int, int] = {}
        complete = False
        for state, start in (*self._live.items(), (ROOT, at)):
            move = self._patterns.move(state, self._before, char)
            if move.complete_before:
                return True
            complete = complete or move.complete
            for target in move.targets:
                following.setdefault(target, start)
        self._live = following
        self._before = before(char)
        return complete

    def end(self) -> bool:
        """See `Scan`."""
        return any(self._patterns.move(state, self._before, "").complete_before for state in self._live)


class Before(IntEnum):
    """What precedes a position, as far as assertions need it."""

    NOTHING = 0
    NEWLINE = 1
    WORD = 2
    OTHER = 3


@lru_cache(maxsize=4096)
def before(char: str) -> Before:
    """Return how a character counts for the position after it."""
    if char == "\n":
        return Before.NEWLINE
    return Before.WORD if _is_word(char) else Before.OTHER


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


class PatternSet:
    """The automaton of several patterns: the edges of each state and of `ROOT`, and the transitions that scans have used so far.

    Raises UnsupportedPattern if a pattern is invalid, may match nothing, or has matches of unbounded length or
    above `max_chars`.
    """

    def __init__(self, patterns: Iterable[str], *, max_chars: int) -> None:
        self._states: list[Edges] = [()]
        for pattern in patterns:
            self._states[ROOT] += _Builder(self._states).build(_parsed(pattern, max_chars))
        self._has_guards = [any(edge.guards for edge in edges) for edges in self._states]
        self._known: dict[tuple[int, Before, str], Transition] = {}

    def move(self, state: int, before: Before, char: str) -> Transition:
        """Return what the next character, after `before`, does in a state; an empty `char` is the end of the text."""
        if not self._has_guards[state]:
            before = Before.OTHER
        return self._known.get((state, before, char)) or self._learn(state, before, char)

    def _learn(self, state: int, before: Before, char: str) -> Transition:
        ways = [edge for edge in self._states[state] if all(holds(before, char) for holds in edge.guards)]
        targets = tuple(dict.fromkeys(edge.target for edge in ways if edge.test and char and edge.test(char)))
        move = Transition(
            complete_before=any(edge.test is None for edge in ways),
            complete=any(
                edge.test is None and not edge.guards for target in targets for edge in self._states[target]
            ),
            targets=targets,
        )
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known[state, before, char] = move
        return move


class Transition(msgspec.Struct, frozen=True, gc=False):
    """A character's effect in a state. `complete_before`: a match ended before it; `complete`: one ends with it."""

    complete_before: bool
    complete: bool
    targets: tuple[int, ...]


Guard = Callable[[Before, str], bool]
"""An assertion about a position, by what precedes it and the next character, which is empty at the end of the text."""


class Edge(msgspec.Struct, frozen=True):
    """A transition: if all guards hold, by a character that passes the test; without a test it ends a match."""

    guards: frozenset[Guard]
    test: Callable[[str], object] | None
    target: int


Edges = tuple[Edge, ...]
MATCH = Edge(frozenset(), None, -1)


def _parsed(pattern: str, max_chars: int) -> Any:
    try:
        parsed = _parser.parse(pattern)
    except (re.error, ValueError, RecursionError, OverflowError) as error:
        raise UnsupportedPattern(f"It is not a regular expression: {error}.") from None
    least, most = parsed.getwidth()
    if most > max_chars:
        raise UnsupportedPattern(
            f"Its matches may be longer than {max_chars} characters: limit its repeats, as in {{1,20}}."
        )
    if least == 0:
        raise UnsupportedPattern("It matches the empty text.")
    return parsed


class _Builder:
    """Builds one pattern's states from its end to its beginning."""

    def __init__(self, states: list[Edges]) -> None:
        self._states = states
        self._left = MOST_EDGES

    def build(self, parsed: Any) -> Edges:
        return self._sequence(parsed, parsed.state.flags, (MATCH,))

    def _sequence(self, items: Any, flags: int, then: Edges) -> Edges:
        for item in reversed(items):
            then = self._item(item, flags, then)
        return then

    def _item(self, item: Any, flags: int, then: Edges) -> Edges:
        operation, value = item
        match operation.name:
            case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
                return (Edge(frozenset(), _test(item, flags), self._state(then)),)
            case "SUBPATTERN":
                _, added, removed, items = value
                return self._sequence(items, (flags | added) & ~removed, then)
            case "BRANCH":
                return self._count(_joined(self._sequence(items, flags, then) for items in value[1]))
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeat(value, flags, then)
            case "AT":
                guard = _guard(value.name, flags)
                return tuple(Edge(edge.guards | {guard}, edge.test, edge.target) for edge in then)
            case other:
                raise UnsupportedPattern(f"{_OUTSIDE.get(other, other)} can't be used here.")

    def _repeat(self, value: Any, flags: int, then: Edges) -> Edges:
        least, most, items = value
        if items.getwidth()[1] == 0:  # repeating an assertion changes nothing
            least, most = min(least, 1), min(most, 1)
        edges = then
        for _ in range(most - least):
            edges = self._count(_joined([self._sequence(items, flags, edges), then]))
        for _ in range(least):
            edges = self._sequence(items, flags, edges)
        return edges

    def _state(self, edges: Edges) -> int:
        self._states.append(self._count(edges))
        return len(self._states) - 1

    def _count(self, edges: Edges) -> Edges:
        self._left -= len(edges)
        if self._left < 0:
            raise UnsupportedPattern("It is too large: it nests repeats, or repeats many alternatives often.")
        return edges


_OUTSIDE = {
    "ASSERT": "Looking around, (?=…) or (?<=…),",
    "ASSERT_NOT": "Looking around, (?!…) or (?<!…),",
    "ATOMIC_GROUP": "An atomic group, (?>…),",
    "POSSESSIVE_REPEAT": "A possessive repeat, such as ?+,",
    "GROUPREF": "A back reference",
    "GROUPREF_EXISTS": "A conditional group",
}


def _joined(ways: Iterable[Edges]) -> Edges:
    return tuple(dict.fromkeys(edge for edges in ways for edge in edges))


def _test(item: Any, flags: int) -> Callable[[str], object]:
    """Return a test of one character for a literal or a class, as `re` would match it."""
    state = _parser.State()
    state.flags = flags
    compiled: re.Pattern[str] = _compiler.compile(_parser.SubPattern(state, [item]))
    return compiled.match


_GUARDS: dict[str, Guard] = {
    "AT_BOUNDARY": lambda before, char: (before is Before.WORD) is not _is_word(char),
    "AT_NON_BOUNDARY": lambda before, char: (before is Before.WORD) is _is_word(char),
    "AT_BEGINNING": lambda before, _: before is Before.NOTHING,
    "AT_BEGINNING_STRING": lambda before, _: before is Before.NOTHING,
    "AT_END_STRING": lambda _, char: not char,
}
_LINE_GUARDS: dict[str, Guard] = _GUARDS | {
    "AT_BEGINNING": lambda before, _: before in (Before.NOTHING, Before.NEWLINE),
    "AT_END": lambda _, char: char in ("", "\n"),
}
"""The guards with the flag `m`."""


def _guard(name: str, flags: int) -> Guard:
    if flags & re.ASCII:
        raise UnsupportedPattern(r"The flag `a` can't be used with \b, \B, ^ and the like.")
    guard = (_LINE_GUARDS if flags & re.MULTILINE else _GUARDS).get(name)
    if guard is None:
        raise UnsupportedPattern(r"$ can't be used here: write \Z, or (?m) for the ends of lines.")
    return guard
