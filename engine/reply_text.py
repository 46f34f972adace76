"""One reply's text: tokens in, whole characters out, ended by stop strings. Knows no request and no batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.characters import whole_length
from engine.detokenizer import Detokenizer
from engine.stop_strings import StopStrings


class TextStep(NamedTuple):
    """What one token did to the reply's text."""

    text: str
    """What may be shown now: whole characters, possibly none."""
    stopped: bool
    """Whether a stop string is complete. `text` is then all that was before it."""


class ReplyText:
    """Detokenizer, then stop strings, then whole characters."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        """Take a fresh detokenizer and the request's stop strings."""
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._waiting = ""
        self._stopped = False

    def push(self, token_id: int) -> TextStep:
        """Take the next token. After a stop, push no more."""
        return self._show(self._detokenizer.push(token_id))

    def flush(self) -> str:
        """Return what was held back, at an end that is no cancel. Nothing is left after a stop."""
        if self._stopped:
            return ""
        last = self._show(self._detokenizer.flush())
        if last.stopped:
            return last.text
        rest, self._waiting = self._waiting, ""
        return last.text + rest + self._stops.flush()

    def _show(self, text: str) -> TextStep:
        passed = self._stops.push(text)
        waiting = self._waiting + passed.text
        self._stopped = passed.stopped
        cut = len(waiting) if passed.stopped else whole_length(waiting)
        self._waiting = waiting[cut:]
        return TextStep(waiting[:cut], passed.stopped)
