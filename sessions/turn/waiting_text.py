"""Text of a reply that waits for its one reader, with what is told of its tokens. Pure."""

from __future__ import annotations

import sys

from engine.messages import ChosenToken
from sessions.filters.filtered_reply import Released

TOLD_AT_ONCE = 64
"""Tokens: what is told of one may be twenty times as long as the token, and nobody else is served while it is encoded."""
_LIKELY_BYTES = 192


class WaitingText:
    """Merges while the reader is late. `bytes`: memory that it takes, about."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._tokens: list[ChosenToken] = []
        self.bytes = 0

    def put(self, released: Released) -> None:
        """Takes text in."""
        self._texts.append(released.text)
        self._tokens += released.logprobs
        self.bytes += sys.getsizeof(released.text) + sum(map(_size, released.logprobs))

    def take(self) -> tuple[str, tuple[ChosenToken, ...]] | None:
        """All of the text, and so many tokens as may be told at once; the others come with later text, empty perhaps. None: nothing waits."""
        if not (self._texts or self._tokens):
            return None
        text, told = "".join(self._texts), tuple(self._tokens[:TOLD_AT_ONCE])
        self._texts.clear()
        del self._tokens[:TOLD_AT_ONCE]
        self.bytes = sum(map(_size, self._tokens))
        return text, told

    def clear(self) -> None:
        """Drops all."""
        self._texts.clear()
        self._tokens.clear()
        self.bytes = 0


def _size(token: ChosenToken) -> int:
    return _LIKELY_BYTES * (1 + len(token.top))
