"""Splits JavaScript into tokens without comments. Knows strings and regular expressions, but no statements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple


class Kind(Enum):
    """The kind of a token."""

    WORD = auto()
    """A name, a keyword or a number."""
    TEXT = auto()
    """A string with its quotes."""
    TEMPLATE = auto()
    """A piece of a template literal, up to the next value or its end."""
    PATTERN = auto()
    """A regular expression."""
    MARK = auto()


class Token(NamedTuple):
    """`before`: the white space before it, as far as it matters; `depth`: the number of open brackets around it."""

    kind: Kind
    text: str
    before: str
    line: int
    depth: int


class TokenError(Exception):
    """A script can't be split into tokens. `line` says where."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


_GAP = re.compile(r"(?:\s+|/\*.*?\*/|//[^\n]*)*", re.DOTALL)
_TOKEN = re.compile(r"""(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<word>[\w$#]+)""", re.DOTALL)
_PIECE = re.compile(r"[`}](?:[^`\\$]|\\.|\$(?!\{))*(?:`|\$\{)", re.DOTALL)
_PATTERN = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*")
_CLOSING = {"(": ")", "[": "]", "{": "}", "${": "}"}
_BEFORE_VALUES = frozenset(
    (
        "await",
        "case",
        "delete",
        "do",
        "else",
        "in",
        "instanceof",
        "new",
        "of",
        "return",
        "throw",
        "typeof",
        "void",
        "yield",
    )
)
"""After these words a slash begins a regular expression; after others it divides."""


def tokens(script: str) -> Iterator[Token]:
    """Split a script into tokens. Raises TokenError if a bracket, a string or a template does not end."""
    reader = _Reader(script)
    while (token := reader.next()) is not None:
        yield token


class _Reader:
    """Walks through a script from its beginning."""

    def __init__(self, script: str) -> None:
        self._script = script
        self._position = 0
        self._line = 1
        self._open: list[str] = []
        self._last: Token | None = None

    def next(self) -> Token | None:
        """Return the next token; None at the end."""
        gap = self._take(_GAP) or ""
        before = "\n" if "\n" in gap else " " if gap else ""
        line = self._line
        if self._position == len(self._script):
            if self._open:
                raise TokenError(line, f"`{self._open[-1]}` is never closed")
            return None
        kind, text = self._read()
        depth = self._depth(kind, text)
        self._last = Token(kind, text, before, line, depth)
        return self._last

    def _read(self) -> tuple[Kind, str]:
        first = self._script[self._position]
        if first == "`" or (first == "}" and self._open and self._open[-1] == "${"):
            return Kind.TEMPLATE, self._demand(_PIECE, "a template is never closed")
        if first == "/" and self._value_may_follow():
            return Kind.PATTERN, self._demand(_PATTERN, "a regular expression is never closed")
        if first in "\"'":
            return Kind.TEXT, self._demand(_TOKEN, "a string is never closed")
        if (word := self._take(_TOKEN)) is not None:
            return Kind.WORD, word
        self._position += 1
        return Kind.MARK, first

    def _value_may_follow(self) -> bool:
        if self._last is None:
            return True
        match self._last.kind:
            case Kind.WORD:
                return self._last.text in _BEFORE_VALUES
            case Kind.MARK:
                return self._last.text not in ")]}"
            case Kind.TEMPLATE:
                return self._last.text.endswith("${")
        return False

    def _depth(self, kind: Kind, text: str) -> int:
        """Return a token's depth; a bracket has the depth outside it."""
        if kind is Kind.MARK and text in ")]}":
            self._close(text)
        if kind is Kind.TEMPLATE and text.startswith("}"):
            self._close("}")
        depth = len(self._open)
        if kind is Kind.MARK and text in "([{":
            self._open.append(text)
        if kind is Kind.TEMPLATE and text.endswith("${"):
            self._open.append("${")
        return depth

    def _close(self, bracket: str) -> None:
        if not self._open or _CLOSING[self._open.pop()] != bracket:
            raise TokenError(self._line, f"`{bracket}` closes nothing")

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self._script, self._position)
        if found is None:
            return None
        self._position = found.end()
        self._line += found[0].count("\n")
        return found[0]

    def _demand(self, pattern: re.Pattern[str], why: str) -> str:
        found = self._take(pattern)
        if found is None:
            raise TokenError(self._line, why)
        return found
