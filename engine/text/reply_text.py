"""One reply's text: tokens in, whole characters out, ended by stop strings. Knows neither requests nor batches."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.detokenizer import Detokenizer
from engine.text.pieces import NOTHING, Piece, ReplyStep
from engine.text.reply_logprobs import ReplyLogprobs
from engine.text.reply_memory import ReplyRecorder
from engine.text.shown_text import ShownText


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
