"""Finds the end of a JSON object or array while its text comes, and notices at once when it is malformed (RFC 8259)."""

from __future__ import annotations

import re
from collections.abc import Callable

DEEPEST = 64
"""The most nested objects and arrays. Deeper ones count as broken."""

LONGEST_ATOM = 1024
"""The most characters of a number; true, false and null have fewer."""

_BLANKS = re.compile(r"[ \t\n\r]*")
_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]*')
_ATOM = re.compile(r"[-+.0-9a-zA-Z]*")
_WHOLE_ATOM = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_CLOSERS = {"{": "}", "[": "]"}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_ESCAPED = frozenset('"\\/bfnrt')

State = Callable[[str, int], int]


class _Broken(Exception):
    """The text is no JSON. `at`: the place of the character that is wrong."""

    def __init__(self, at: int) -> None:
        self.at = at


class JsonScanner:
    """Reads one object or array. It looks at each character once, however the text is cut.

    `done`: the value is whole. `broken`: it is malformed, or nested too deeply.
    """

    def __init__(self) -> None:
        """Expect the opening bracket next."""
        self.done = self.broken = False
        self._closers: list[str] = []
        self._state: State = self._value
        self._behind_string: State = self._behind_value
        self._atom = ""
        self._digits = 0

    def scan(self, text: str, at: int = 0) -> int:
        """Read on from `at`. Return where the value ends, where it is broken, or else the end of the text."""
        try:
            while at < len(text) and not self.done:
                at = self._state(text, at)
        except _Broken as broken:
            self.broken = True
            return broken.at
        return at

    def _value(self, text: str, at: int) -> int:
        at = self._blanks(text, at)
        if at == len(text):
            return at
        letter = text[at]
        if letter in _CLOSERS:
            return self._open(letter, at)
        if not self._closers:
            raise _Broken(at)
        if letter == '"':
            return self._open_string(at, self._behind_value)
        if letter not in "-0123456789tfn":
            raise _Broken(at)
        self._atom, self._state = "", self._in_atom
        return at

    def _open(self, letter: str, at: int) -> int:
        if len(self._closers) == DEEPEST:
            raise _Broken(at)
        self._closers.append(_CLOSERS[letter])
        self._state = self._first_key if letter == "{" else self._first_value
        return at + 1

    def _close(self, at: int) -> int:
        self._closers.pop()
        self._state = self._behind_value
        self.done = not self._closers
        return at + 1

    def _first_key(self, text: str, at: int) -> int:
        at = self._blanks(text, at)
        return self._close(at) if text[at : at + 1] == "}" else self._key(text, at)

    def _first_value(self, text: str, at: int) -> int:
        at = self._blanks(text, at)
        return self._close(at) if text[at : at + 1] == "]" else self._value(text, at)

    def _key(self, text: str, at: int) -> int:
        at = self._blanks(text, at)
        if at == len(text):
            return at
        if text[at] != '"':
            raise _Broken(at)
        return self._open_string(at, self._colon)

    def _colon(self, text: str, at: int) -> int:
        at = self._blanks(text, at)
        if at == len(text):
            return at
        if text[at] != ":":
            raise _Broken(at)
        self._state = self._value
        return at + 1

    def _behind_value(self, text: str, at: int) -> int:
        at = self._blanks(text, at)
        if at == len(text):
            return at
        if text[at] == self._closers[-1]:
            return self._close(at)
        if text[at] != ",":
            raise _Broken(at)
        self._state = self._key if self._closers[-1] == "}" else self._value
        return at + 1

    def _open_string(self, at: int, behind: State) -> int:
        self._state, self._behind_string = self._in_string, behind
        return at + 1

    def _in_string(self, text: str, at: int) -> int:
        found = _CHARACTERS.match(text, at)
        at = found.end() if found else at
        if at == len(text):
            return at
        if text[at] == '"':
            self._state = self._behind_string
        elif text[at] == "\\":
            self._state = self._escape
        else:
            raise _Broken(at)
        return at + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._digits, self._state = 4, self._hexadecimal
        elif text[at] in _ESCAPED:
            self._state = self._in_string
        else:
            raise _Broken(at)
        return at + 1

    def _hexadecimal(self, text: str, at: int) -> int:
        if text[at] not in _HEX_DIGITS:
            raise _Broken(at)
        self._digits -= 1
        if not self._digits:
            self._state = self._in_string
        return at + 1

    def _in_atom(self, text: str, at: int) -> int:
        found = _ATOM.match(text, at)
        end = min(found.end() if found else at, at + LONGEST_ATOM - len(self._atom))
        self._atom += text[at:end]
        if end == len(text):
            return end
        if not _WHOLE_ATOM.fullmatch(self._atom):
            raise _Broken(end)
        self._state = self._behind_value
        return end

    def _blanks(self, text: str, at: int) -> int:
        found = _BLANKS.match(text, at)
        return found.end() if found else at
