"""A region of calls while it is held back: it is shown to nobody before it is whole. Knows lengths, and no format."""

from __future__ import annotations

from engine.parsing.formats import Found
from engine.parsing.json_scanner import JsonScanner
from engine.text.pieces import Call

LONGEST_CALL = 256 * 1024
"""Characters of a region of calls, its delimiters included: so much is held back at most. A longer one is text."""


class Held:
    """What came of a region, and the calls that were read from it. Its value begins at `begin` and ends at `end`.

    In a region of several values the current one does.
    """

    def __init__(self, opening: str = "", name: str | None = None) -> None:
        """Take the opening of a region, and what it tells of a call's name."""
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
        """All that came of the region."""
        return "".join(self._parts)

    @property
    def value(self) -> Found:
        """The current value, in what came of the region."""
        return Found(self.raw, self.begin, self.end, self._name)

    @property
    def whole(self) -> Found:
        """All values."""
        return Found(self.raw, self._first, self.end, self._name)

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
