"""The log-probabilities of one reply's tokens, from their sampling until their text leaves.

Knows no torch and no tokenizer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from engine.messages import ChosenToken, TokenLogprob
from engine.text.logprobs import LogprobQueue
from engine.text.vocabulary import Spelled

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
