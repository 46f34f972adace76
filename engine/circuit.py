"""A circuit breaker: an engine that failed again and again is left alone for a while, then tried with one request. Pure.

Nygard, Release It!, 2nd edition, chapter 5. Closed: all may ask. Open: nobody. Half open: one, who decides.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

FAILURES = 5
"""Failures in a row that open a circuit."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0


class CircuitState(StrEnum):
    """Who may ask."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Circuit:
    """Told of how requests end; says whether the next one may begin.

    Whoever begins says at last one of `succeeded`, `failed` and `withdrew`; `answered` comes before, with the first
    text: it lets the others in again, on probation until a request succeeds.
    """

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        """Take a clock in seconds, and a source of numbers from 0 to 1, so that replicas do not try at one moment."""
        self._clock = clock
        self._random = random
        self._failures = 0
        self._until = 0.0
        self._trial = False
        self.opened = 0

    @property
    def state(self) -> CircuitState:
        """Who may ask now."""
        if self._failures < FAILURES:
            return CircuitState.CLOSED
        return CircuitState.OPEN if self._clock() < self._until else CircuitState.HALF_OPEN

    @property
    def admits(self) -> bool:
        """Whether a request may begin."""
        match self.state:
            case CircuitState.CLOSED:
                return True
            case CircuitState.OPEN:
                return False
            case CircuitState.HALF_OPEN:
                return not self._trial

    @property
    def left_s(self) -> float:
        """The seconds until a request may try."""
        return max(0.0, self._until - self._clock())

    def begin(self) -> None:
        """Note that a request is sent, which was admitted."""
        self._trial = self.state is CircuitState.HALF_OPEN

    def answered(self) -> None:
        """Note that a reply began. Nothing is proved yet: the next failure opens the circuit again."""
        if self.state is CircuitState.HALF_OPEN:
            self._trial = False
            self._failures = FAILURES - 1

    def succeeded(self) -> None:
        """Note that a request was answered as it should be."""
        self._trial = False
        self._failures = 0
        self.opened = 0

    def withdrew(self) -> None:
        """Note that a request ended without telling anything: it was cancelled, or shed."""
        self._trial = False

    def failed(self) -> None:
        """Note a failure; from `FAILURES` in a row on the circuit is open, longer each time."""
        self._trial = False
        if self.state is CircuitState.OPEN:
            return  # it began before the circuit opened
        self._failures = min(self._failures + 1, FAILURES)
        if self._failures == FAILURES:
            longest = min(FIRST_PAUSE_S * 2.0**self.opened, LONGEST_PAUSE_S)
            self.opened = min(self.opened + 1, 16)
            self._until = self._clock() + longest * (0.5 + self._random() / 2)
