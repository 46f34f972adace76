"""How long all of it may take: says whether another round fits. Knows seconds; the clock is passed in."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class Budget:
    """Time that is left, and how long each thing took when it was done last."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._took: dict[Hashable, float] = {}

    @property
    def left_s(self) -> float:
        """Seconds that are left; negative once they are used up."""
        return self._end - self._clock()

    def allows(self, thing: Hashable, *, kept_s: float = 0.0) -> bool:
        """Tell whether a thing that was done before fits again and leaves `kept_s`. What never was always does."""
        return thing not in self._took or self._took[thing] + kept_s <= self.left_s

    def took_longer(self, thing: Hashable, seconds: float) -> bool:
        """Tell whether a thing took longer than this when it was done last."""
        return self._took.get(thing, 0.0) > seconds

    def took(self, thing: Hashable, seconds: float) -> None:
        """Note how long a thing took."""
        self._took[thing] = seconds
