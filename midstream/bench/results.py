"""Counts the results so far, in a fixed amount of memory. Synchronous; callers pass the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from midstream.bench.histogram import Histogram

MOST_SLICES = 240
"""Most parts of the time line; beyond it, pairs are merged."""
MOST_CODES = 64
"""Most kinds of errors that are counted separately; others count as `other`."""


@dataclass(slots=True)
class Slice:
    """The events of one part of the time."""

    pieces: int = 0
    ended: int = 0
    errors: int = 0
    talking: int = 0
    """The most conversations at once."""


class TimeLine:
    """Equal parts of the time, whose length grows so that there are never many."""

    def __init__(self, slice_s: float = 0.25) -> None:
        self.slice_s = slice_s
        self.slices: list[Slice] = []

    def at(self, passed_s: float, *, talking: int) -> Slice:
        """Return the part of a time (seconds since the beginning), and note the number of conversations."""
        while (place := int(max(0.0, passed_s) / self.slice_s)) >= MOST_SLICES:
            self._halve()
        while place >= len(self.slices):
            self.slices.append(Slice())
        part = self.slices[place]
        part.talking = max(part.talking, talking)
        return part

    def _halve(self) -> None:
        self.slice_s *= 2
        pairs = [self.slices[start : start + 2] for start in range(0, len(self.slices), 2)]
        self.slices = [_joined(pair) for pair in pairs]


def _joined(pair: list[Slice]) -> Slice:
    return Slice(
        pieces=sum(one.pieces for one in pair),
        ended=sum(one.ended for one in pair),
        errors=sum(one.errors for one in pair),
        talking=max(one.talking for one in pair),
    )


@dataclass(slots=True)
class Durations:
    """All measured durations, in seconds; `tokens_per_s` in tokens."""

    ready: Histogram = field(default_factory=Histogram)
    """From connecting to `ready`."""
    accepted: Histogram = field(default_factory=Histogram)
    """From a message to `accepted`."""
    first_token: Histogram = field(default_factory=Histogram)
    """From a message to the first text or reasoning of its reply."""
    gap: Histogram = field(default_factory=Histogram)
    """Between two pieces of a reply, as they come."""
    cancelled: Histogram = field(default_factory=Histogram)
    """From `cancel` to `cancelled`."""
    stopped: Histogram = field(default_factory=Histogram)
    """From `cancel` to `done`."""
    reply: Histogram = field(default_factory=Histogram)
    """From a message to `done`, of replies that were not stopped."""
    tokens_per_s: Histogram = field(default_factory=Histogram)
    """Of one reply, from its first piece to its last."""
    own_lag: Histogram = field(default_factory=Histogram)
    """This program's own lag: its measurements can't be better than that."""

    def __iter__(self) -> Iterator[tuple[str, Histogram]]:
        """Return each with its name."""
        return ((name, getattr(self, name)) for name in self.__slots__)


class Results:
    """Counts the results of all conversations. `begun`: when the run began, by the clock of all times here."""

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.ended_at = begun
        """When the last reply ended, or the last message was sent."""
        self.durations = Durations()
        self.line = TimeLine()
        self.conversations = 0
        self.left_out = 0
        """Arrivals that were left out since there were too many conversations."""
        self.unfinished = 0
        """Conversations that were given up at the end."""
        self.talking = 0
        self.tokens = 0
        self.ends: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    @property
    def replies(self) -> int:
        """The number of ended replies, of any kind."""
        return self.ends.total()

    def came(self, now: float) -> None:
        """Note a new conversation."""
        self.conversations += 1
        self.talking += 1
        self.sample(now)

    def went(self, now: float) -> None:
        """Note an ended conversation."""
        self.sample(now)
        self.talking -= 1

    def sample(self, now: float) -> Slice:
        """Note the number of conversations; return the current part of the time line."""
        return self.line.at(now - self.begun, talking=self.talking)

    def piece(self, now: float) -> None:
        """Note a piece of a reply."""
        self.sample(now).pieces += 1

    def end(self, reason: str, tokens: int, now: float) -> None:
        """Note an ended reply."""
        self.ends[reason if reason in self.ends or len(self.ends) < MOST_CODES else "other"] += 1
        self.tokens += tokens
        self.ended_at = max(self.ended_at, now)
        self.sample(now).ended += 1

    def error(self, code: str, now: float) -> None:
        """Note a refusal or a failure."""
        self.errors[code if code in self.errors or len(self.errors) < MOST_CODES else "other"] += 1
        self.sample(now).errors += 1
