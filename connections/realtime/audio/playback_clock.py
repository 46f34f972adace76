"""Estimates how much of each reply's sound its listener has heard. Pure; the caller passes the clock.

Clients of this protocol play sound as it comes, and report only when they stop. So a reply is assumed to be played from
its first sound on, without a gap if sound came in time, `LAG_MS` after it was sent.
"""

from __future__ import annotations

from collections.abc import Callable

LAG_MS = 200
"""The delay from sending sound to hearing it: the network, and the player's buffer."""


class PlaybackClock:
    """The replies of one session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: in seconds."""
        self._clock = clock
        self._playbacks: dict[str, _Playback] = {}

    def sent(self, turn_id: str, ms: float) -> None:
        """Note that more of a turn's sound was sent to its client."""
        now = self._clock()
        play = self._playbacks.setdefault(turn_id, _Playback(now))
        if play.heard_ms(now) >= play.sent_ms:  # it had run dry: new sound begins now
            play.begun = now + (LAG_MS - play.sent_ms) / 1000
        play.sent_ms += ms

    def sent_ms(self, turn_id: str) -> int:
        """Return how much of it was sent."""
        return int(self._playbacks[turn_id].sent_ms) if turn_id in self._playbacks else 0

    def heard_ms(self, turn_id: str) -> int:
        """Return how much of it was heard by now."""
        return int(self._playbacks[turn_id].heard_ms(self._clock())) if turn_id in self._playbacks else 0

    def stop(self, turn_id: str, ms: int) -> None:
        """Note where playing stopped."""
        if turn_id in self._playbacks:
            self._playbacks[turn_id].stopped_ms = ms

    def forget(self, turn_id: str) -> None:
        """Forget an ended one."""
        self._playbacks.pop(turn_id, None)


class _Playback:
    """One reply. `begun`: when its first sample would have been heard without pauses."""

    __slots__ = ("begun", "sent_ms", "stopped_ms")

    def __init__(self, now: float) -> None:
        self.begun = now + LAG_MS / 1000
        self.sent_ms = 0.0
        self.stopped_ms: int | None = None

    def heard_ms(self, now: float) -> float:
        if self.stopped_ms is not None:
            return self.stopped_ms
        return min(self.sent_ms, max(0.0, (now - self.begun) * 1000))
