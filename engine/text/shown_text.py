"""Text to be shown: ended by stop strings, then cut at whole characters. Knows text alone."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.characters import whole_length
from engine.text.stop_strings import StopStrings


class ShownText:
    """Passes text on as far as it may be shown. `stop`: the complete stop string; add no more text then."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        """Take the stop strings, none of them empty."""
        self.stop: str | None = None
        self._stops = StopStrings(stops) if stops else None
        self._waiting = ""

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self.stop is not None

    def push(self, text: str) -> str:
        """Take more text; return the whole characters that may be shown now, possibly none.

        At a stop string that is all text before it.
        """
        if self._stops is not None:
            text, self.stop = self._stops.push(text)
        waiting = self._waiting + text
        cut = len(waiting) if self.stopped else whole_length(waiting)
        self._waiting = waiting[cut:]
        return waiting[:cut]

    def flush(self) -> str:
        """Return the held-back rest: the passage of text has ended."""
        rest, self._waiting = self._waiting, ""
        return rest if self._stops is None else rest + self._stops.flush()
