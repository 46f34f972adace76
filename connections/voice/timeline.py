"""The timeline of one reply's sound: what was made, sent and played, and which text was heard. Pure."""

from __future__ import annotations

from bisect import bisect_right
from math import ceil

import msgspec

from sessions.turn.message_request import Precision
from speech.interfaces import Mark

AHEAD_MS = 400
"""How far sound is sent ahead of playing at most: sound beyond a cut was mostly not even sent."""


class _Boundary(msgspec.Struct, frozen=True):
    """The text up to an offset was heard once so much was played."""

    at_ms: int
    off: int
    is_word: bool


class Timeline:
    """Times are milliseconds from the reply's first sample."""

    def __init__(self, *, rate: int, width: int, off: int = 0) -> None:
        """`width`: bytes of a sample; `off`: the offset of the reply's text."""
        self._rate, self._width = rate, width
        self._sound = bytearray()
        self._dropped = self._sent = 0
        self._boundaries = [_Boundary(0, off, is_word=True)]
        self.played_ms = 0

    @property
    def synthesized_ms(self) -> float:
        """The length of all of it."""
        return self._ms(self._dropped + len(self._sound))

    @property
    def sent_ms(self) -> float:
        """How much was sent."""
        return self._ms(self._sent)

    @property
    def is_sent(self) -> bool:
        """Whether all that was made was sent."""
        return self._sent == self._dropped + len(self._sound)

    @property
    def is_played(self) -> bool:
        """Whether all that was made was played."""
        return self.is_sent and self.played_ms >= int(self.synthesized_ms)

    @property
    def heard(self) -> int:
        """The offset after the last word that was played to its end."""
        return self._last(self.played_ms).off

    @property
    def sent_off(self) -> int:
        """The offset after the last word that was sent to its end."""
        return self._last(ceil(self.sent_ms)).off

    @property
    def precision(self) -> Precision:
        """Whether a cut now is at a word."""
        place = self._index_at(self.played_ms)
        following = self._boundaries[place : place + 1]
        return (
            "word"
            if self._last(self.played_ms).is_word and all(end.is_word for end in following)
            else "chunk"
        )

    def add(self, sound: bytes, *, off: int, chars: int, marks: tuple[Mark, ...] | None) -> tuple[Mark, ...]:
        """Take a clause's sound with its own marks; return the marks for the whole reply."""
        begun_ms = self.synthesized_ms
        self._sound += sound
        if marks is None:
            self._boundaries.append(_Boundary(ceil(self.synthesized_ms), off + chars, is_word=False))
            return ()
        moved = tuple(
            Mark(
                off=off + mark.off,
                len=mark.len,
                start_ms=int(begun_ms + mark.start_ms),
                end_ms=ceil(begun_ms + mark.end_ms),
            )
            for mark in marks
        )
        self._boundaries += [_Boundary(mark.end_ms, mark.off + mark.len, is_word=True) for mark in moved]
        return moved

    def take(self, most_ms: int) -> bytes:
        """Return the next sound to send, at most so much; empty if it is not due, or there is none."""
        until = min(self._bytes(self.played_ms + AHEAD_MS), self._sent + self._bytes(most_ms))
        part = bytes(self._sound[self._sent - self._dropped : max(0, until - self._dropped)])
        self._sent += len(part)
        return part

    def played(self, ms: int) -> bool:
        """Note how much of the sent sound was played; return whether that is more than before."""
        ms = min(ms, ceil(self.sent_ms))
        if ms <= self.played_ms:
            return False
        self.played_ms = ms
        done = min(self._bytes(ms), self._sent) - self._dropped
        del self._sound[:done]
        self._dropped += done
        return True

    def stop_at(self, ms: int) -> None:
        """Note that so much of the sent sound was heard and no more, whatever was noted before."""
        self.played_ms = min(ms, ceil(self.sent_ms))

    def rewind(self) -> None:
        """Note that the listener lost sound that was sent and not played: it is sent again."""
        self._sent = self._dropped

    def _last(self, ms: int) -> _Boundary:
        return self._boundaries[self._index_at(ms) - 1]

    def _index_at(self, ms: int) -> int:
        return bisect_right(self._boundaries, ms, key=lambda end: end.at_ms)

    def _ms(self, size: int) -> float:
        return size / self._width * 1000 / self._rate

    def _bytes(self, ms: float) -> int:
        return int(ms * self._rate / 1000) * self._width
