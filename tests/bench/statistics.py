"""Makes figures of observations. Pure: no clock, no server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from tests.bench.records import Observed, Reply

MS = 1000.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one server at one level; None if not measured, or not measurable. `…_ms` are milliseconds."""

    tokens_per_s: float | None = None
    """For all replies together, from the first prompt sent to the last end."""
    first_token_p50_ms: float | None = None
    """From a prompt sent to its first text."""
    first_token_p99_ms: float | None = None
    gap_p50_ms: float | None = None
    """Between two pieces of text of one reply, as they come."""
    gap_p99_ms: float | None = None
    tokens_per_text: float | None = None
    """Tokens in a piece of text: more than one if a server merges, holds back or sends in bursts."""
    tokens_per_reply: float | None = None
    """Tokens of the shortest reply: fewer than requested if the model stopped early."""
    cancelled_p50_ms: float | None = None
    """From `cancel` sent to `cancelled`."""
    cancelled_p99_ms: float | None = None
    done_p50_ms: float | None = None
    """From `cancel` sent to `done`."""
    done_p99_ms: float | None = None
    steps_after: float | None = None
    """The most steps that a reply took after its cancel was read."""
    silent_ms: float | None = None
    """From all replies cancelled at once until the server is idle."""
    silent_cpu_ms: float | None = None
    """CPU time that the server used in that time."""


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the value below which a share (0 to 1) of the values lie, linear between neighbours; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def figures(load: Observed, stopped: Observed, silenced: Observed) -> Figures:
    """Return the figures of one turn, of its three jobs; a job that was not run is an empty observation."""
    replies, stops = load.replies, stopped.stops
    first = [reply.arrivals[0] - reply.sent for reply in replies]
    gaps = [later - earlier for reply in replies for earlier, later in pairwise(reply.arrivals)]
    steps = [stop.steps_after for stop in stops if stop.steps_after is not None]
    silence = silenced.silence
    return Figures(
        tokens_per_s=_rate(replies),
        first_token_p50_ms=_ms(percentile(first, 0.5)),
        first_token_p99_ms=_ms(percentile(first, 0.99)),
        gap_p50_ms=_ms(percentile(gaps, 0.5)),
        gap_p99_ms=_ms(percentile(gaps, 0.99)),
        tokens_per_text=_tokens_per_text(replies),
        tokens_per_reply=min((reply.tokens for reply in replies), default=None),
        cancelled_p50_ms=_ms(percentile((stop.cancelled_s for stop in stops), 0.5)),
        cancelled_p99_ms=_ms(percentile((stop.cancelled_s for stop in stops), 0.99)),
        done_p50_ms=_ms(percentile((stop.done_s for stop in stops), 0.5)),
        done_p99_ms=_ms(percentile((stop.done_s for stop in stops), 0.99)),
        steps_after=max(steps, default=None),
        silent_ms=_ms(silence.after_s) if silence else None,
        silent_cpu_ms=_ms(silence.cpu_s) if silence else None,
    )


def medians(turns: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the turns that have it."""
    names = Figures.__struct_fields__
    known = {name: [v for turn in turns if (v := getattr(turn, name)) is not None] for name in names}
    return Figures(**{name: median(values) for name, values in known.items() if values})


def _rate(replies: Sequence[Reply]) -> float | None:
    if not replies:
        return None
    wall = max(reply.ended for reply in replies) - min(reply.sent for reply in replies)
    return sum(reply.tokens for reply in replies) / wall


def _tokens_per_text(replies: Sequence[Reply]) -> float | None:
    texts = sum(len(reply.arrivals) for reply in replies)
    return sum(reply.tokens for reply in replies) / texts if texts else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * MS
