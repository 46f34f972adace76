"""When a dead engine is started again, and when nobody tries any more. Pure: the clock and chance are passed in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """After the first death in `window_s` the wait is `first_delay_s`; it doubles with each further one.

    `deaths` within `window_s` are too many. `jitter` is the share by which a wait is shortened at random.
    """

    first_delay_s: float = 0.2
    longest_delay_s: float = 30.0
    deaths: int = 5
    window_s: float = 600.0
    jitter: float = 0.25


class RestartLedger:
    """Remembers the deaths of one engine."""

    def __init__(self, policy: RestartPolicy, chance: Callable[[], float]) -> None:
        """Take the policy and a source of numbers from 0 to 1."""
        self._policy = policy
        self._chance = chance
        self._deaths: deque[float] = deque()

    def died(self, now: float) -> float | None:
        """Note a death at `now`, in seconds. Returns how long to wait, None where it was one too many."""
        policy = self._policy
        self._deaths.append(now)
        while self._deaths[0] <= now - policy.window_s:
            self._deaths.popleft()
        if len(self._deaths) >= policy.deaths:
            return None
        delay = min(policy.first_delay_s * 2.0 ** (len(self._deaths) - 1), policy.longest_delay_s)
        return delay * (1.0 - policy.jitter * self._chance())
