"""Budgets of what a connection may send, in frames and bytes, by kind. Pure; the caller passes the time.

Beyond a budget the connection is read more slowly until its debt is repaid. TCP slows the sender down.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from connections.limits.bound_counters import Bound


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
