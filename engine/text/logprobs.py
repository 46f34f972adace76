"""Tokens that are told once their text has left, and not before. Knows texts by their lengths alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from engine.messages import ChosenToken


class _Gap(NamedTuple):
    """Behind the first `at` characters of the text, the next `chars` that were made are none of it."""

    at: int
    chars: int


class LogprobQueue:
    """Holds back what is told of a reply's tokens.

    A token of which only a part leaves is never told: its name would show the rest. So it is with one that something
    ends the reply in, and one that reaches into a gap.
    """

    __slots__ = ("_begin", "_gaps", "_left", "_skipped", "_start", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[ChosenToken] = deque()
        self._gaps: deque[_Gap] = deque()
        self._left = 0
        self._skipped = 0
        self._begin = 0  # of the first token that waits, among all that was made
        self._start = 0  # of the text behind the last gap, likewise

    def put(self, tokens: Iterable[ChosenToken]) -> None:
        """Add the next tokens of the reply. Their `end` counts all that was made, gaps too."""
        self._waiting += tokens

    def skip(self, at: int, chars: int) -> None:
        """Note a gap: once `at` characters of text have left, the next `chars` that were made never do."""
        self._gaps.append(_Gap(at, chars))

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next text leaves; return the tokens that go with it. None goes where no text does.

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
