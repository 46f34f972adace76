"""Reads the file that the setting `filters` names: its words, patterns and hooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sessions.filters.chain import Filters, slices
from sessions.filters.holdback import HoldbackFilter, Scan
from sessions.filters.interface import Filter, ReplyFilter
from sessions.filters.pattern_program import UnsupportedPattern
from sessions.filters.pattern_scan import PatternScan, PatternSet
from sessions.filters.word_list import WordList, WordScan


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
