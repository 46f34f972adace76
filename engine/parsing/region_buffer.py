"""A region of calls, which is held back until it is whole. Knows lengths, but no format."""

from __future__ import annotations

from engine.parsing.formats import CallRegion
from engine.parsing.json_scanner import JsonScanner
from engine.text.pieces import Call

LONGEST_CALL = 256 * 1024
"""The most characters of a region of calls, its delimiters included, that are held back. A longer one is text."""


class RegionBuffer:
    """The text of a region so far, and the calls that were read from it.

    Its value, or the current one of several, begins at `begin` and ends at `end`.
    """

    def __init__(self, opening: str = "", name: str | None = None) -> None:
        """Take the opening of a region, and the call's name if the opening has it."""
        self.scanner = JsonScanner()
        self.calls: tuple[Call, ...] = ()
        self.chars = self.begin = self._first = len(opening)
        self.end = 0
        self._name = name
        self._parts = [opening]

    @property
    def room(self) -> int:
        """How many more characters may be held."""
        return LONGEST_CALL - self.chars

    @property
    def raw(self) -> str:
        """All text of the region so far."""
        return "".join(self._parts)

    @property
    def value(self) -> CallRegion:
        """The current value, in the text of the region so far."""
        return CallRegion(self.raw, self.begin, self.end, self._name)

    @property
    def whole(self) -> CallRegion:
        """All values."""
        return CallRegion(self.raw, self._first, self.end, self._name)

    def add(self, text: str) -> None:
        """Take more of the region."""
        self._parts.append(text)
        self.chars += len(text)

    def begin_value(self) -> None:
        """Expect another value next."""
        self.begin = self.chars
        self.scanner = JsonScanner()

    def end_value(self) -> None:
        """Note that the value is whole."""
        self.end = self.chars
