"""Measures the times of a turn's deltas."""

from __future__ import annotations

from sessions.observer import Observer
from sessions.turn.turn_state import TurnState


class TokenLatency:
    """Reports the times of one turn's deltas to the observer."""

    def __init__(self, observer: Observer, turn: TurnState) -> None:
        self._observer = observer
        self._turn = turn
        self._last: float | None = None

    def delta(self, now: float) -> None:
        """Note a published delta."""
        if self._last is None:
            self._observer.first_token(now - (self._turn.accepted_at or now))
        else:
            self._observer.gap(now - self._last)
        self._last = now
