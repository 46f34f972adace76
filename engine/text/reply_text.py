"""One reply's text: tokens in, whole characters out, ended by stop strings. Knows no request and no batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.text.characters import whole_length
from engine.text.detokenizer import Detokenizer
from engine.text.reply_logprobs import ReplyLogprobs
from engine.text.reply_memory import ReplyNotes
from engine.text.stop_strings import StopStrings


class TextStep(NamedTuple):
    """What one token did to the reply's text."""

    text: str
    """What may be shown now: whole characters, possibly none."""
    stopped: bool
    """Whether a stop string is complete. `text` is then all that was before it."""


class ReplyText:
    """Detokenizer, then stop strings, then whole characters."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        notes: ReplyNotes | None = None,
        logprobs: ReplyLogprobs | None = None,
    ) -> None:
        """Take a fresh detokenizer, the request's stop strings, and where to note what is written, if anywhere.

        `logprobs`: whom to tell which text each token gave; it has to have a score for each.
        """
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._waiting = ""
        self._stopped = False
        self._notes = notes
        self._logprobs = logprobs

    def push(self, token_id: int) -> TextStep:
        """Take the next token. After a stop, push no more."""
        text = self._detokenizer.push(token_id)
        if self._notes is not None:
            self._notes.add(token_id, text)
        if self._logprobs is not None:
            self._logprobs.made(text, holds=self._detokenizer.holds)
        step = self._show(text)
        if step.stopped:
            self._close_notes()
        return step

    def flush(self) -> str:
        """Return what was held back, at the reply's end. Nothing is left after a stop."""
        if self._stopped:
            return ""
        text = self._detokenizer.flush()
        self._close_notes(text)
        if self._logprobs is not None:
            self._logprobs.finish(text)
        last = self._show(text)
        if last.stopped:
            return last.text
        rest, self._waiting = self._waiting, ""
        return last.text + rest + self._stops.flush()

    def _close_notes(self, rest: str = "") -> None:
        if self._notes is not None:
            self._notes.close(rest)

    def _show(self, text: str) -> TextStep:
        passed = self._stops.push(text)
        waiting = self._waiting + passed.text
        self._stopped = passed.stopped
        cut = len(waiting) if passed.stopped else whole_length(waiting)
        self._waiting = waiting[cut:]
        return TextStep(waiting[:cut], passed.stopped)
