"""The time budget: decides whether another round fits. Knows seconds; the caller passes the clock in."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class Budget:
    """Remaining time, and the last duration of each thing."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._took: dict[Hashable, float] = {}

    @property
    def left_s(self) -> float:
        """Remaining seconds; negative once they are used up."""
        return self._end - self._clock()

    def allows(self, thing: Hashable, *, kept_s: float = 0.0) -> bool:
        """Return whether a thing fits again and leaves `kept_s`. A thing that was never done always fits."""
        return thing not in self._took or self._took[thing] + kept_s <= self.left_s

    def took_longer(self, thing: Hashable, seconds: float) -> bool:
        """Return whether a thing's last duration was longer than this."""
        return self._took.get(thing, 0.0) > seconds

    def took(self, thing: Hashable, seconds: float) -> None:
        """Note a thing's duration."""
        self._took[thing] = seconds
