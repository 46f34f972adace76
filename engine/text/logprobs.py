"""Reports tokens once their text has left, and not before. Knows only the lengths of texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from engine.messages import ChosenToken, TokenLogprob
from engine.text.detokenizer import Spelled


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


_INVALID = "\ufffd"


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
