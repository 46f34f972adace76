"""One load of a contender: requests in, the time of each token out, and figures of them. Knows no contender by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from tests.bench.report import MS, percentile

TEMPERATURE, TOP_P = 0.8, 0.95
BEGUN = 8
"""Tokens that every stream has when the intruder comes, so that no prefill is left."""


class ContenderFailed(Exception):
    """A contender refused or dropped a request. The message is for people."""


class GenerationRequest(NamedTuple):
    """One request: token ids in, `new_tokens` wanted. It may reuse the cached prompts of its `conversation`."""

    name: str
    prompt: Sequence[int]
    new_tokens: int
    conversation: str


class TokenUpdate(NamedTuple):
    """News of one request: a number of new tokens, and whether they were the last."""

    name: str
    tokens: int
    ended: bool


class Contender(Protocol):
    """Serves requests, all sampled with the same temperature and top-p. Used from one thread."""

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Take requests that arrive at the same moment."""

    def wait(self) -> Sequence[TokenUpdate]:
        """Wait briefly for news, and return it. Raises ContenderFailed."""

    def cancel(self, name: str) -> None:
        """End a request: only the news of its end is still to come."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A number of requests at once, each with a prompt of its own, read to the end.

    `cut_s`: all is cancelled after this time, and tokens until then count. `intruder_tokens`: once every stream
    has begun, one more prompt of this length comes, and all ends when its first token is there. `salt` varies prompts.
    """

    at_once: int
    prompt_tokens: int
    new_tokens: int
    cut_s: float
    salt: int = 0
    intruder_tokens: int | None = None


WARM_UP = (Load(at_once=1, prompt_tokens=64, new_tokens=4, cut_s=30),) * 2 + (
    Load(at_once=16, prompt_tokens=32, new_tokens=4, cut_s=30),
)
"""The first steps of a process are slow, for every contender."""


class Stream(msgspec.Struct, frozen=True):
    """One reply as it was read: the time of the request, and of each token."""

    sent: float
    arrivals: tuple[float, ...]


class Observed(msgspec.Struct, frozen=True):
    """The outcome of a load. `cut`: time ran out before the replies had ended."""

    streams: tuple[Stream, ...]
    intruder: Stream | None = None
    cut: bool = False


def prompt(length: int, vocabulary: int, seed: object) -> list[int]:
    """Return token ids, different for each seed."""
    draw = Random(repr(seed))
    return [draw.randrange(vocabulary) for _ in range(length)]


class _Run:
    """The requests of one load: when each was sent, the time of each token, and which are `running`."""

    def __init__(self, contender: Contender, clock: Callable[[], float]) -> None:
        self.sent: dict[str, float] = {}
        self.arrivals: dict[str, list[float]] = {}
        self.running: set[str] = set()
        self._contender, self._clock = contender, clock

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Send requests and note the time."""
        now = self._clock()
        for requested in requests:
            self.sent[requested.name], self.arrivals[requested.name] = now, []
            self.running.add(requested.name)
        self._contender.submit(requests)

    def take(self) -> None:
        """Wait for news, and note it."""
        news = self._contender.wait()
        now = self._clock()
        for one in news:
            self.arrivals[one.name] += [now] * one.tokens
            if one.ended:
                self.running.discard(one.name)

    def leave(self) -> None:
        """Cancel the running requests, and wait for their ends; tokens meanwhile do not count."""
        for name in self.running:
            self._contender.cancel(name)
        while self.running:
            self.running -= {one.name for one in self._contender.wait() if one.ended}


def observe(
    contender: Contender, load: Load, *, vocabulary: int, clock: Callable[[], float], turn: int
) -> Observed:
    """Run a load to its end. `turn` makes the requests' names unique. Raises ContenderFailed."""
    run = _Run(contender, clock)
    names = [f"{turn}-{number}" for number in range(load.at_once)]
    run.submit([_request(load, name, load.prompt_tokens, vocabulary) for name in names])
    deadline, intruder = clock() + load.cut_s, ""
    while run.running and not run.arrivals.get(intruder) and clock() <= deadline:
        run.take()
        if not intruder and load.intruder_tokens and min(map(len, run.arrivals.values())) >= BEGUN:
            intruder = f"{turn}-intruder"
            run.submit([_request(load, intruder, load.intruder_tokens, vocabulary)])
    cut = bool(run.running) and not run.arrivals.get(intruder)
    run.leave()
    streams = {name: Stream(at, tuple(run.arrivals[name])) for name, at in run.sent.items()}
    apart = streams.pop(intruder, None)
    return Observed(tuple(streams.values()), apart, cut)


def _request(load: Load, name: str, length: int, vocabulary: int) -> GenerationRequest:
    return GenerationRequest(name, prompt(length, vocabulary, (load.salt, name)), load.new_tokens, name)


def tokens_per_s(observed: Observed) -> float:
    """Return the tokens per second of all streams, from the first prompt sent to the last token. 0 if there were none."""
    arrivals = [arrival for stream in observed.streams for arrival in stream.arrivals]
    if not arrivals:
        return 0.0
    return len(arrivals) / (max(arrivals) - min(stream.sent for stream in observed.streams))


def steadiness(observed: Observed) -> float | None:
    """Return p99 / p50 of the gaps between tokens while all streams run: after the last began, before one ended."""
    begun = max((stream.arrivals[0] for stream in observed.streams if stream.arrivals), default=0.0)
    ended = min((stream.arrivals[-1] for stream in observed.streams if stream.arrivals), default=0.0)
    gaps = [
        later - earlier
        for stream in observed.streams
        for earlier, later in pairwise(stream.arrivals)
        if begun <= earlier and later <= ended
    ]
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
