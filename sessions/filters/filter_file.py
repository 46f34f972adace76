"""Reads the file that the setting `filters` names: its words, patterns and hooks."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sessions.filters.chain import Filters
from sessions.filters.filter_hook import Filter
from sessions.filters.list_filter import ListFilter, Lists
from sessions.filters.pattern_program import PatternRefused
from sessions.filters.pattern_scan import PatternSet
from sessions.filters.word_list import WordList

MAX_CHARS = 128


class FiltersUnusable(Exception):
    """The file can't be used. The message tells the operator where, and why."""


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The lists of one direction."""

    words: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()


class FilterFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. `max_chars`: the longest match of a pattern, and so the longest text that is held back for one."""

    input: Listed = Listed()
    output: Listed = Listed()
    max_chars: Annotated[int, Meta(ge=1, le=1024)] = MAX_CHARS
    hooks: tuple[str, ...] = ()


def filters_from(path: Path) -> Filters:
    """Return the filters of a file, its lists before its hooks. Raises FiltersUnusable."""
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=FilterFile)
        lists = ListFilter(
            incoming=_lists("input", file.input, file.max_chars),
            outgoing=_lists("output", file.output, file.max_chars),
        )
        return Filters([lists, *(_hook(name) for name in file.hooks)])
    except (OSError, msgspec.DecodeError, FiltersUnusable) as error:
        raise FiltersUnusable(f"{path}: {error}") from error


def _lists(name: str, listed: Listed, max_chars: int) -> Lists:
    """Return one direction's lists. Raises FiltersUnusable, with the place of the entry."""
    for number, word in enumerate(listed.words):
        try:
            WordList([word])
        except ValueError as error:
            raise FiltersUnusable(f"{name}.words[{number}] {word!r}: {error}") from None
    for number, pattern in enumerate(listed.patterns):
        try:
            PatternSet([pattern], max_chars=max_chars)
        except PatternRefused as error:
            raise FiltersUnusable(f"{name}.patterns[{number}] {pattern!r}: {error}") from None
    return Lists(listed.words, listed.patterns, max_chars=max_chars)


def _hook(name: str) -> Filter:
    """Return the filter that `package.module:factory` makes. Raises FiltersUnusable."""
    module, _, factory = name.partition(":")
    try:
        made = getattr(import_module(module), factory)()
    except Exception as error:  # any exception of an operator's code stops the start
        raise FiltersUnusable(f"hooks: {name!r} fails: {type(error).__name__}: {error}") from error
    if not isinstance(made, Filter):
        raise FiltersUnusable(f"hooks: {name!r} makes a {type(made).__name__}, which is no Filter.")
    return made
