"""Reads the file that the setting `filters` names: its words, patterns and hooks."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sessions.filters.chain import Filters
from sessions.filters.interface import Filter
from sessions.filters.list_filter import ListFilter, MatchLists
from sessions.filters.pattern_program import UnsupportedPattern
from sessions.filters.pattern_scan import PatternSet
from sessions.filters.word_list import WordList

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
