"""Token buckets: what a connection may send in frames and bytes, and an owner or a group in messages and reads. Pure.

A connection beyond its budget is read more slowly until its debt is repaid: TCP slows the sender down. A message or read beyond
its rate is refused. `quotas.py` has the limits that all replicas count together.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum, StrEnum

from sessions.errors import Refused
from sessions.limits.bounds import GROUPS_TIMES, RATES, REFUSED_REQUEST_FRAMES, Bound, Rate, rate_of
from sessions.limits.shares import Subject


class RateLimited(Refused):
    """A limit has no room for the request. `retry_after_ms`: the time until it has."""

    code = "rate_limited"
    retryable = True

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class TokenBucket:
    """A token bucket as one number: the time when it is full again (ITU-T I.371, the generic cell rate algorithm)."""

    __slots__ = ("full_at", "rate")

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.full_at = -math.inf

    def take(self, tokens: float, now: float) -> bool:
        """Take tokens at `now` (seconds of any monotonic clock), also on credit; return whether the bucket is in debt."""
        self.full_at = self._full_after(tokens, now)
        return self.wait_s(now) > 0

    def wait_s(self, now: float, tokens: float = 0) -> float:
        """Return the seconds until the debt is repaid, and `tokens` may be taken without a new one."""
        return max(0.0, self._full_after(tokens, now) - now - self.rate.burst / self.rate.per_s)

    def change(self, rate: Rate, now: float) -> None:
        """Change the rate: what is missing stays the same amount, at most a whole bucket."""
        missing = max(0.0, self.full_at - now) * self.rate.per_s
        self.rate = rate
        self.full_at = now + min(missing, rate.burst) / rate.per_s

    def _full_after(self, tokens: float, now: float) -> float:
        return max(self.full_at, now) + tokens / self.rate.per_s


class FrameKind(Enum):
    """The kind of a frame. A fragment is of its message's kind."""

    TEXT = "text"
    BINARY = "binary"
    CONTROL = "control"


class FrameBudget:
    """The buckets of one connection."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets = {bound: TokenBucket(rate) for bound, rate in RATES.items()}

    def take(self, kind: FrameKind, size: int, now: float) -> Bound | None:
        """Count a frame with `size` bytes of payload; return the bound that it exceeds."""
        frames, octets = _BOUNDS_OF[kind]
        exceeded = frames if self._buckets[frames].take(1, now) else None
        return octets if octets and self._buckets[octets].take(size, now) else exceeded

    def charge(self, now: float) -> Bound | None:
        """Count a refusal as 64 text frames; return the bound that it exceeds.

        Many pending requests may be refused at the same moment: at most two of them add debt.
        """
        frames = self._buckets[Bound.TEXT_FRAMES]
        if frames.wait_s(now) >= REFUSED_REQUEST_FRAMES / frames.rate.per_s:
            return None
        return Bound.TEXT_FRAMES if frames.take(REFUSED_REQUEST_FRAMES, now) else None

    def wait_s(self, now: float) -> float:
        """Return the seconds until the debt is repaid."""
        return max(bucket.wait_s(now) for bucket in self._buckets.values())


_BOUNDS_OF = {
    FrameKind.TEXT: (Bound.TEXT_FRAMES, Bound.TEXT_BYTES),
    FrameKind.BINARY: (Bound.BINARY_FRAMES, Bound.BINARY_BYTES),
    FrameKind.CONTROL: (Bound.CONTROL_FRAMES, None),
}


class NamedBuckets:
    """A bucket for each name, of `per_s` a second. A full one is deleted, so only names with recent requests have one."""

    def __init__(self, per_s: float) -> None:
        self._rate = rate_of(per_s)
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def wait_s(self, name: str, now: float, weight: float) -> float:
        """Return the seconds until a name may send this; 0 if it may now.

        What weighs more than a whole bucket takes a whole one: else it could never be sent.
        """
        bucket = self._buckets.get(name) or TokenBucket(self._rate)
        return round(bucket.wait_s(now, min(weight, self._rate.burst)), 6)  # sums of fractions are not exact

    def take(self, name: str, now: float, weight: float) -> None:
        """Count what a name sends."""
        bucket = self._buckets.setdefault(name, TokenBucket(self._rate))
        bucket.take(min(weight, self._rate.burst), now)
        self._buckets.move_to_end(name)
        self.forget(now)

    def change(self, per_s: float, now: float) -> None:
        """Change the rate; what was sent so far still counts."""
        self._rate = rate_of(per_s)
        for bucket in self._buckets.values():
            bucket.change(self._rate, now)

    def forget(self, now: float) -> None:
        """Delete full buckets, the oldest first."""
        while self._buckets and next(iter(self._buckets.values())).full_at <= now:
            self._buckets.popitem(last=False)


class FrameCost(StrEnum):
    """What a request counts as, besides the bytes of its frame."""

    MESSAGE = "message"  # begins a turn
    READ = "read"  # asks the store
    NOTHING = "nothing"  # is answered from memory, or must never be refused


class LocalRateLimits:
    """The rates of messages and reads a second, of owners and groups, counted by this replica before the store is asked."""

    def __init__(self, *, messages: float, reads: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._messages = (NamedBuckets(messages), NamedBuckets(messages * GROUPS_TIMES))
        self._reads = (NamedBuckets(reads), NamedBuckets(reads * GROUPS_TIMES))

    def __len__(self) -> int:
        return sum(len(buckets) for buckets in (*self._messages, *self._reads))

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

    def change(self, *, messages: float, reads: float) -> None:
        """Change the rates; what was sent so far still counts."""
        now = self._clock()
        for (own, group), per_s in ((self._messages, messages), (self._reads, reads)):
            own.change(per_s, now)
            group.change(per_s * GROUPS_TIMES, now)

    def forget(self) -> None:
        """Delete the full buckets of a crowd that has left: the next request would, which may be hours away."""
        now = self._clock()
        for buckets in (*self._messages, *self._reads):
            buckets.forget(now)
