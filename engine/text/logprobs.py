"""Reports tokens once their text has left, and not before. Knows only the lengths of texts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from engine.messages import ChosenToken


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
