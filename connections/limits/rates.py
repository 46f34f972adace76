"""Rates of messages and reads, of an owner and of a key or address, counted by this replica before the store is asked. Pure.

They are token buckets: a burst, then so many a second. `quota_limiter.py` has the limits that all replicas count.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from connections.limits.quotas import RateLimited
from connections.protocol.codec import FrameCost
from sessions.fair_share import Subject

GROUPS_TIMES = 10
"""A key or an address may send as much as so many owners together."""
BURST_S = 5.0
"""A burst may hold what the rate allows in so many seconds."""


class Rate(msgspec.Struct, frozen=True):
    """Messages or reads a second."""

    per_s: float

    @property
    def burst(self) -> float:
        """The size of a burst."""
        return max(1.0, self.per_s * BURST_S)


class _Buckets:
    """One bucket a name. A full bucket is deleted, so only names with recent messages have one. `forget` does so when nobody sends."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._levels)

    def wait_s(self, name: str, now: float, weight: float) -> float:
        """Return the seconds until a name may send so many; 0 if it may now."""
        return max(0.0, (self._cost(weight) - self._level(name, now)) / self.rate.per_s)

    def take(self, name: str, now: float, weight: float) -> None:
        self._levels[name] = (self._level(name, now) - self._cost(weight), now)
        self._levels.move_to_end(name)
        self.forget(now)

    def _cost(self, weight: float) -> float:
        """Take from a bucket. What weighs more than a full bucket takes all of it, or it could never be sent."""
        return min(weight, self.rate.burst)

    def _level(self, name: str, now: float) -> float:
        level, at = self._levels.get(name, (self.rate.burst, now))
        return min(self.rate.burst, level + (now - at) * self.rate.per_s)

    def forget(self, now: float) -> None:
        while self._levels:
            _, at = next(iter(self._levels.values()))
            if now - at < self.rate.burst / self.rate.per_s:
                return
            self._levels.popitem(last=False)


class LocalRateLimits:
    """The rates of all connections and requests of this replica."""

    def __init__(self, *, messages: Rate, reads: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._messages = (_Buckets(messages), _Buckets(Rate(messages.per_s * GROUPS_TIMES)))
        self._reads = (_Buckets(reads), _Buckets(Rate(reads.per_s * GROUPS_TIMES)))

    def change(self, *, messages: Rate, reads: Rate) -> None:
        """Change the rates; what was sent so far still counts."""
        for (own, group), rate in ((self._messages, messages), (self._reads, reads)):
            own.rate, group.rate = rate, Rate(rate.per_s * GROUPS_TIMES)

    def __len__(self) -> int:
        return sum(len(buckets) for buckets in (*self._messages, *self._reads))

    def forget(self) -> None:
        """Delete the full buckets of a crowd that has left: the next request would, which may be hours away."""
        now = self._clock()
        for buckets in (*self._messages, *self._reads):
            buckets.forget(now)

    def take(self, counts: FrameCost, subject: Subject, weight: int = 1) -> None:
        """Count a request of this weight for its owner and its group, or for neither. Raises RateLimited."""
        if counts is FrameCost.NOTHING:
            return
        now = self._clock()
        names = (subject.owner, subject.group) if subject.group else (subject.owner,)
        pairs = list(zip(self._messages if counts is FrameCost.MESSAGE else self._reads, names, strict=False))
        if (wait_s := max(buckets.wait_s(name, now, weight) for buckets, name in pairs)) > 0:
            what = "messages" if counts is FrameCost.MESSAGE else "requests"
            raise RateLimited(
                f"You send {what} too quickly; try again in a moment.", math.ceil(wait_s * 1000)
            )
        for buckets, name in pairs:
            buckets.take(name, now, weight)
