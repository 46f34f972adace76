"""Tokens that are told once their text has left, and not before. Knows texts by their lengths alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from engine.messages import ChosenToken


class LogprobQueue:
    """Holds back what is told of a reply's tokens.

    A token of which only a part leaves, because something ends the reply inside it, is never told: its name would show the rest.
    """

    __slots__ = ("_left", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[ChosenToken] = deque()
        self._left = 0

    def put(self, tokens: Iterable[ChosenToken]) -> None:
        """Add the next tokens of the reply."""
        self._waiting += tokens

    def leave(self, text: str) -> tuple[ChosenToken, ...]:
        """Note that the reply's next text leaves; return the tokens that go with it. None goes where no text does."""
        if not text:
            return ()
        self._left += len(text)
        leaving = []
        while self._waiting and self._waiting[0].end <= self._left:
            leaving.append(self._waiting.popleft())
        return tuple(leaving)
