"""Token buckets: what a connection may send in frames and bytes, and an owner or a group in messages and reads. Pure.

A connection beyond its budget is read more slowly until its debt is repaid: TCP slows the sender down. A message or read beyond
its rate is refused. `quotas.py` has the limits that all replicas count together.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum

import msgspec

from connections.limits.bound_counters import Bound
from connections.limits.quotas import RateLimited
from connections.protocol.frames import FrameCost
from sessions.fair_share import Subject

MAX_FRAME_BYTES = 64 * 1024
"""A larger frame closes the connection with 1009 (RFC 6455, section 7.4.1)."""
GROUPS_TIMES = 10
"""A key or an address may send as much as so many owners together."""
BURST_S = 5.0
"""A burst of messages or reads may hold what the rate allows in so many seconds."""


class FrameKind(Enum):
    """The kind of a frame. A fragment is of its message's kind."""

    TEXT = "text"
    BINARY = "binary"
    CONTROL = "control"


class Rate(msgspec.Struct, frozen=True):
    """A rate: `burst` at once, and `per_s` continuously."""

    per_s: float
    burst: float


RATES = {
    Bound.TEXT_FRAMES: Rate(64, 256),
    Bound.TEXT_BYTES: Rate(256 * 1024, 1024 * 1024),
    Bound.BINARY_FRAMES: Rate(128, 256),
    Bound.BINARY_BYTES: Rate(256 * 1024, 512 * 1024),
    Bound.CONTROL_FRAMES: Rate(16, 64),
}
"""Sound takes 50 to 100 binary frames a second of about 1 KB; nobody types 64 messages a second."""
REFUSED_REQUEST_FRAMES = 64
"""Text frames that a request counts as if it was refused for too many requests: a second's worth."""
PIPELINED = Rate(32, 32)
"""HTTP requests that are sent before the last one's answer (pipelined)."""


class TokenBucket:
    """A token bucket as one number: the time when it is full again (ITU-T I.371, the generic cell rate algorithm)."""

    __slots__ = ("_burst_s", "_full_at", "_per_s")

    def __init__(self, rate: Rate) -> None:
        self._per_s = rate.per_s
        self._burst_s = rate.burst / rate.per_s
        self._full_at = float("-inf")

    def take(self, tokens: float, now: float) -> bool:
        """Take tokens at `now` (seconds of any monotonic clock), also on credit; return whether the bucket is in debt."""
        self._full_at = max(self._full_at, now) + tokens / self._per_s
        return self._full_at - now > self._burst_s

    def wait_s(self, now: float) -> float:
        """Return the seconds until the debt is repaid."""
        return max(0.0, self._full_at - now - self._burst_s)


class FrameBudget:
    """The buckets of one connection."""

    __slots__ = ("_binary", "_control", "_text")

    def __init__(self) -> None:
        self._text = _pair(Bound.TEXT_FRAMES, Bound.TEXT_BYTES)
        self._binary = _pair(Bound.BINARY_FRAMES, Bound.BINARY_BYTES)
        self._control = TokenBucket(RATES[Bound.CONTROL_FRAMES])

    def take(self, kind: FrameKind, size: int, now: float) -> Bound | None:
        """Count a frame with `size` bytes of payload; return the bound that it exceeds."""
        if kind is FrameKind.CONTROL:
            return Bound.CONTROL_FRAMES if self._control.take(1, now) else None
        (frames, too_many), (octets, too_much) = self._text if kind is FrameKind.TEXT else self._binary
        in_debt = too_many if frames.take(1, now) else None
        return too_much if octets.take(size, now) else in_debt

    def charge(self, now: float) -> Bound | None:
        """Count a refused request as many text frames; return the bound that it exceeds.

        Many pending requests may be refused at the same moment: at most two of them count.
        """
        (frames, exceeded), _ = self._text
        if frames.wait_s(now) >= REFUSED_REQUEST_FRAMES / RATES[exceeded].per_s:
            return None
        return exceeded if frames.take(REFUSED_REQUEST_FRAMES, now) else None

    def wait_s(self, now: float) -> float:
        """Return the seconds until the debt is repaid."""
        owed = (self._control, *(bucket for bucket, _ in (*self._text, *self._binary)))
        return max(bucket.wait_s(now) for bucket in owed)


_Pair = tuple[tuple[TokenBucket, Bound], tuple[TokenBucket, Bound]]


def _pair(frames: Bound, octets: Bound) -> _Pair:
    return (TokenBucket(RATES[frames]), frames), (TokenBucket(RATES[octets]), octets)


class _NamedBuckets:
    """A bucket for each name, of `per_s` a second. A full one is deleted, so only names with recent messages have one."""

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    @property
    def _burst(self) -> float:
        return max(1.0, self.per_s * BURST_S)

    def _full_after(self, name: str, now: float, weight: float) -> float:
        """Return when the bucket is full again if it gives so much, or all of it to what weighs more: else that could never be sent."""
        return max(self._full_at.get(name, now), now) + min(weight, self._burst) / self.per_s

    def wait_s(self, name: str, now: float, weight: float) -> float:
        """Return the seconds until a name may send so much; 0 if it may now."""
        wait_s = self._full_after(name, now, weight) - now - self._burst / self.per_s
        return max(0.0, round(wait_s, 6))  # sums of fractions are not exact

    def change(self, per_s: float, now: float) -> None:
        """Change the rate: what is missing in each bucket stays the same amount, at most a whole bucket."""
        owed = {
            name: (full_at - now) * self.per_s for name, full_at in self._full_at.items() if full_at > now
        }
        self.per_s = per_s
        self._full_at = OrderedDict(
            (name, now + min(amount, self._burst) / per_s) for name, amount in owed.items()
        )

    def take(self, name: str, now: float, weight: float) -> None:
        """Count what a name sends."""
        self._full_at[name] = self._full_after(name, now, weight)
        self._full_at.move_to_end(name)
        self.forget(now)

    def forget(self, now: float) -> None:
        """Delete full buckets, the oldest first."""
        while self._full_at and next(iter(self._full_at.values())) <= now:
            self._full_at.popitem(last=False)


class LocalRateLimits:
    """The rates of messages and reads a second, of owners and groups, counted by this replica before the store is asked."""

    def __init__(self, *, messages: float, reads: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._messages = (_NamedBuckets(messages), _NamedBuckets(messages * GROUPS_TIMES))
        self._reads = (_NamedBuckets(reads), _NamedBuckets(reads * GROUPS_TIMES))

    def change(self, *, messages: float, reads: float) -> None:
        """Change the rates; what was sent so far still counts."""
        now = self._clock()
        for (own, group), per_s in ((self._messages, messages), (self._reads, reads)):
            own.change(per_s, now)
            group.change(per_s * GROUPS_TIMES, now)

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
