"""Makes figures of the observations of one load. Pure: no clock, no contender."""

from __future__ import annotations

from itertools import pairwise

from tests.bench.engine.records import Observed
from tests.bench.statistics import percentile

MS = 1000.0


def tokens_per_s(observed: Observed) -> float:
    """Return the tokens per second of all streams, from the first prompt sent to the last token. 0 if there were none."""
    arrivals = [arrival for stream in observed.streams for arrival in stream.arrivals]
    if not arrivals:
        return 0.0
    return len(arrivals) / (max(arrivals) - min(stream.sent for stream in observed.streams))


def steadiness(observed: Observed) -> float | None:
    """Return p99 / p50 of the gaps between tokens while all streams run: after the last began, before one ended."""
    started = max((stream.arrivals[0] for stream in observed.streams if stream.arrivals), default=0.0)
    ended = min((stream.arrivals[-1] for stream in observed.streams if stream.arrivals), default=0.0)
    gaps = _gaps(observed, started, ended)
    middle, high = percentile(gaps, 0.5), percentile(gaps, 0.99)
    return high / middle if middle and high else None


def longest_gap_ms(observed: Observed) -> float | None:
    """Return the longest wait of any stream, in milliseconds, from the intruder's arrival to its first token."""
    intruder = observed.intruder
    if intruder is None or not intruder.arrivals:
        return None
    gaps = [
        later - earlier
        for stream in observed.streams
        for earlier, later in pairwise([*stream.arrivals, intruder.arrivals[0]])
        if later > intruder.sent
    ]
    return max(gaps, default=0.0) * MS


def _gaps(observed: Observed, begin: float, end: float) -> list[float]:
    return [
        later - earlier
        for stream in observed.streams
        for earlier, later in pairwise(stream.arrivals)
        if begin <= earlier and later <= end
    ]
