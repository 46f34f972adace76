"""Holds back the end of a reply while it may become a match, and no longer. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.text.characters import floor_boundary
from sessions.filters.interface import Passed


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
