"""One reply's text: tokens in, whole characters out, ended by stop strings. Knows neither requests nor batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine.text.characters import whole_length
from engine.text.detokenizer import Detokenizer
from engine.text.logprobs import ReplyLogprobs
from engine.text.reply_memory import ReplyRecorder


class Thought(NamedTuple):
    """Whole characters of reasoning."""

    text: str


class Call(NamedTuple):
    """A complete call. `arguments`: the text of a JSON object, as the model wrote it."""

    name: str
    arguments: str


Piece = str | Thought | Call
"""A plain string is text that may be shown: whole characters, never empty."""


class ReplyStep(NamedTuple):
    """The effect of one token: the pieces that became ready, in order, and whether the reply ended."""

    pieces: tuple[Piece, ...]
    stopped: bool = False


NOTHING = ReplyStep(())
"""The effect of a token without a ready piece."""


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


class ReplyText:
    """A reply that is not parsed: it passes through the detokenizer and stop strings, and leaves in whole characters.

    `written` is empty, since the text is all that the model wrote.
    """

    written = ""

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        notes: ReplyRecorder | None = None,
        logprobs: ReplyLogprobs | None = None,
    ) -> None:
        """Take a fresh detokenizer, the request's stop strings, and the recorder of the reply, if any.

        `logprobs`: is told each token's text; it must have a score for each.
        """
        self._detokenizer = detokenizer
        self._shown = ShownText(stops)
        self._notes = notes
        self._logprobs = logprobs

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the reply; None if none did."""
        return self._shown.stop

    def push(self, token_id: int) -> ReplyStep:
        """Take the next token. After a stop, push no more."""
        text = self._detokenizer.push(token_id)
        if self._notes is not None:
            self._notes.add(token_id, text)
        if self._logprobs is not None:
            self._logprobs.made(text, holds=self._detokenizer.holds)
        shown = self._shown.push(text)
        if self._shown.stopped:
            self._close_notes()
            return ReplyStep((shown,) if shown else (), stopped=True)
        return ReplyStep((shown,)) if shown else NOTHING

    def resume(self, token_ids: Sequence[int]) -> None:
        """Take the first tokens of a continued reply: they are recorded, but not returned."""
        for token_id in token_ids:
            text = self._detokenizer.push(token_id)
            if self._notes is not None:
                self._notes.add(token_id, text)

    def flush(self) -> tuple[Piece, ...]:
        """Return the held-back rest, at the reply's end. After a stop there is none."""
        if self._shown.stopped:
            return ()
        text = self._detokenizer.flush()
        self._close_notes(text)
        if self._logprobs is not None:
            self._logprobs.finish(text)
        last = self._shown.push(text)
        if not self._shown.stopped:
            last += self._shown.flush()
        return (last,) if last else ()

    def _close_notes(self, rest: str = "") -> None:
        if self._notes is not None:
            self._notes.close(rest)
