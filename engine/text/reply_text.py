"""One reply's text: tokens in, whole characters out, ended by stop strings, with log-probabilities if they are wanted.

A token's log-probability leaves with its text, and not before. Knows neither requests nor batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from engine.messages import ChosenToken, TokenLogprob
from engine.text.characters import whole_length
from engine.text.detokenizer import Detokenizer, Spelled
from engine.text.reply_memory import ReplyRecorder

_INVALID = "\ufffd"


class _Gap(NamedTuple):
    """A gap: after the first `at` characters of the text, the next `chars` decoded ones are not part of it."""

    at: int
    chars: int


class LogprobQueue:
    """Holds back the log-probabilities of a reply's tokens.

    A token of which only a part leaves is never reported, since its name would show the rest. That holds for a token in which
    the reply is cut, and for one that reaches into a gap.
    """

    __slots__ = ("_begin", "_gaps", "_left", "_skipped", "_start", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[ChosenToken] = deque()
        self._gaps: deque[_Gap] = deque()
        self._left = 0
        self._skipped = 0
        self._begin = 0  # of the first waiting token, among all that was decoded
        self._start = 0  # of the text after the last gap, likewise

    def put(self, tokens: Iterable[ChosenToken]) -> None:
        """Add the next tokens of the reply. Their `end` counts all that was decoded, gaps included."""
        self._waiting += tokens

    def skip(self, at: int, chars: int) -> None:
        """Note a gap: after `at` characters of text, the next `chars` decoded ones never leave."""
        self._gaps.append(_Gap(at, chars))

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next text leaves; return its tokens, none without text.

        Their `end` counts text alone.
        """
        if not text:
            return ()
        leaving: list[ChosenToken] = []
        end = self._left + len(text)
        while self._gaps and self._gaps[0].at < end:
            gap = self._gaps.popleft()
            leaving += self._up_to(gap.at)
            self._skipped += gap.chars
            self._start = gap.at + self._skipped
        leaving += self._up_to(end)
        self._left = end
        return tuple(leaving)

    def _up_to(self, end: int) -> list[ChosenToken]:
        """Take the tokens that end within the first `end` characters of text; return those that are all text."""
        taken: list[ChosenToken] = []
        while self._waiting and self._waiting[0].end <= end + self._skipped:
            token = self._waiting.popleft()
            if self._begin >= self._start:
                taken.append(self._counted(token))
            self._begin = token.end
        return taken

    def _counted(self, token: ChosenToken) -> ChosenToken:
        if not self._skipped:
            return token
        return msgspec.structs.replace(token, end=token.end - self._skipped)


class ScoredToken(NamedTuple):
    """A sampled token with log-probabilities: its own, and those of the likeliest tokens, in order."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class ReplyLogprobs:
    """Gets scores from the step loop, and texts from the detokenizer.

    The joined bytes of the reported tokens are the text, if it is valid UTF-8: in the text other bytes are U+FFFD.
    """

    def __init__(self, spell: Callable[[int], Spelled]) -> None:
        """Take the function that returns a token's text."""
        self._spell = spell
        self._scored: deque[ScoredToken] = deque()
        self._open: list[tuple[ScoredToken, Spelled]] = []
        self._queue = LogprobQueue()
        self._made = 0

    def score(self, scored: ScoredToken) -> None:
        """Add the next token; its text is `made` later."""
        self._scored.append(scored)

    def made(self, text: str, *, holds: bool) -> None:
        """Note the text that the first token without any gave. `holds`: a part of the token became no text yet."""
        scored = self._scored.popleft()
        spelled = self._spell(scored.token)
        if spelled.raw is not None and not (self._open or holds) and _INVALID not in text:
            # In context a token's text may differ: at the front it may lose its space.
            spelled = Spelled(text, text.encode())
        self._made += len(text)
        if text:
            # what was held before begins this text
            self._close()
        self._open.append((scored, spelled))
        if not holds:
            self._close()

    def finish(self, text: str) -> None:
        """Note the text of the held rest at the reply's end."""
        self._made += len(text)
        self._close()

    def skip(self, at: int, chars: int) -> None:
        """Note that after the first `at` characters of text the next `chars` decoded ones are not part of it."""
        self._queue.skip(at, chars)

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next text leaves; return its tokens."""
        return self._queue.leave(text)

    def _close(self) -> None:
        self._queue.put(
            ChosenToken(
                _as_logprob(spelled, scored.logprob),
                tuple(_as_logprob(self._spell(token), logprob) for token, logprob in scored.top),
                self._made,
            )
            for scored, spelled in self._open
        )
        self._open.clear()


def _as_logprob(spelled: Spelled, logprob: float) -> TokenLogprob:
    return TokenLogprob(spelled.token, logprob, spelled.raw)


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
