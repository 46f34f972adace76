"""How much of each reply's sound its listener has heard, as far as a clock can say. Pure; the clock is the caller's.

Clients of this protocol play what they are sent as it comes, and say how far they are only when they stop. So a reply is
taken to be played from its first sound on, without a gap where sound came in time, `LAG_MS` behind its sending.
"""

from __future__ import annotations

from collections.abc import Callable

LAG_MS = 200
"""Between the sending of sound and the ear: the network, and what a player keeps before it begins."""


class PlayClock:
    """The replies of one session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: in seconds."""
        self._clock = clock
        self._plays: dict[str, _Play] = {}

    def sent(self, turn_id: str, ms: float) -> None:
        """So much more of a turn's sound was handed to its client."""
        now = self._clock()
        play = self._plays.setdefault(turn_id, _Play(now))
        if play.heard_ms(now) >= play.sent_ms:  # it had run dry: what comes now begins now
            play.begun = now + (LAG_MS - play.sent_ms) / 1000
        play.sent_ms += ms

    def sent_ms(self, turn_id: str) -> int:
        """How much of it was handed over."""
        return int(self._plays[turn_id].sent_ms) if turn_id in self._plays else 0

    def heard_ms(self, turn_id: str) -> int:
        """How much of it was heard by now."""
        return int(self._plays[turn_id].heard_ms(self._clock())) if turn_id in self._plays else 0

    def stop(self, turn_id: str, ms: int) -> None:
        """It is played no further: so much of it was."""
        if turn_id in self._plays:
            self._plays[turn_id].stopped_ms = ms

    def forget(self, turn_id: str) -> None:
        """It is over."""
        self._plays.pop(turn_id, None)


class _Play:
    """One reply. `begun`: when its first sample would have been heard, had it never run dry."""

    __slots__ = ("begun", "sent_ms", "stopped_ms")

    def __init__(self, now: float) -> None:
        self.begun = now + LAG_MS / 1000
        self.sent_ms = 0.0
        self.stopped_ms: int | None = None

    def heard_ms(self, now: float) -> float:
        if self.stopped_ms is not None:
            return self.stopped_ms
        return min(self.sent_ms, max(0.0, (now - self.begun) * 1000))
