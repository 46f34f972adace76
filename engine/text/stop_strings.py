"""Ends a reply at the first stop string, independent of how its text is split. Knows text alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopStep(NamedTuple):
    """The text that may be shown after a push, and the stop string that ended the reply, or None."""

    text: str
    stop: str | None = None

    @property
    def stopped(self) -> bool:
        """Whether the reply ends here."""
        return self.stop is not None


class StopStrings:
    """Passes text on, except a stop string or its possible beginning.

    The first complete stop string wins; of several at the same place, the longest. So the result does not depend on how the
    text was split.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Take the stop strings, none of them empty."""
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""

    def push(self, text: str) -> StopStep:
        """Take more text and return what may be shown of all the text so far. After a stop, push no more."""
        if not self._stops:
            return StopStep(text)
        text = self._held + text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            self._held = ""
            return StopStep(text[:start], stop)
        cut = len(text) - self._beginning_of_a_stop(text)
        self._held = text[cut:]
        return StopStep(text[:cut])

    def flush(self) -> str:
        """Return the held-back rest: the reply ended, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _beginning_of_a_stop(self, text: str) -> int:
        """Return the length of the longest end of `text` that begins a stop string."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
