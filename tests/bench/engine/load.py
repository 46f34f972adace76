"""Drives a contender through one load and notes the time of each token. Knows no contender by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tests.bench.engine.contender import Contender, GenerationRequest, TokenUpdate, prompt
from tests.bench.engine.records import Load, Observed, Stream

INTRUDER = "intruder"
BEGUN = 8
"""Tokens that every stream has when the intruder comes, so that no prefill is left."""
WARM_UP = (Load(at_once=1, prompt_tokens=64, new_tokens=4, cut_s=30),) * 2 + (
    Load(at_once=16, prompt_tokens=32, new_tokens=4, cut_s=30),
)
"""The first steps of a process are slow, for every contender."""


def observe(
    contender: Contender, load: Load, *, vocabulary: int, clock: Callable[[], float], turn: int
) -> Observed:
    """Run a load to its end. `turn` makes the requests' names unique. Raises ContenderFailed."""
    run = _Run(contender, clock)
    streams = _streams(load, vocabulary, turn)
    run.submit(streams[: load.at_once])
    coming = streams[load.at_once :]
    deadline = clock() + load.cut_s
    intruder: GenerationRequest | None = None
    while run.open and not run.has_begun(intruder):
        run.take(contender.wait())
        if clock() > deadline:
            break
        if coming and len(run.open) < load.at_once:
            free = load.at_once - len(run.open)
            run.submit(coming[:free])
            coming = coming[free:]
        if intruder is None and load.intruder_tokens and run.fewest >= BEGUN:
            intruder = _intruder(load, vocabulary, turn)
            run.submit([intruder])
    cut = bool(run.open) and not run.has_begun(intruder)
    run.leave()
    return run.observed(intruder, cut=cut)


class _Run:
    """The requests of one load: the open ones, and the time of each token."""

    def __init__(self, contender: Contender, clock: Callable[[], float]) -> None:
        self._contender = contender
        self._clock = clock
        self._sent: dict[str, float] = {}
        self._arrivals: dict[str, list[float]] = {}
        self.open: set[str] = set()

    @property
    def fewest(self) -> int:
        """Tokens of the stream with the fewest."""
        return min(len(arrivals) for arrivals in self._arrivals.values())

    def has_begun(self, one: GenerationRequest | None) -> bool:
        """Return whether a request was sent and has a token."""
        return one is not None and bool(self._arrivals.get(one.name))

    def submit(self, requests: Sequence[GenerationRequest]) -> None:
        """Send requests and note the time."""
        now = self._clock()
        for requested in requests:
            self._sent[requested.name] = now
            self._arrivals[requested.name] = []
            self.open.add(requested.name)
        self._contender.submit(requests)

    def take(self, news: Sequence[TokenUpdate]) -> None:
        """Note news."""
        now = self._clock()
        for one in news:
            self._arrivals[one.name] += [now] * one.tokens
            if one.ended:
                self.open.discard(one.name)

    def leave(self) -> None:
        """Cancel the open requests, and wait for their ends; tokens meanwhile do not count."""
        for name in self.open:
            self._contender.cancel(name)
        while self.open:
            self.open -= {one.name for one in self._contender.wait() if one.ended}

    def observed(self, intruder: GenerationRequest | None, *, cut: bool) -> Observed:
        """Return the notes, those of the intruder apart."""
        streams = {name: Stream(sent, tuple(self._arrivals[name])) for name, sent in self._sent.items()}
        apart = streams.pop(intruder.name) if intruder else None
        return Observed(tuple(streams.values()), apart, cut)


def _streams(load: Load, vocabulary: int, turn: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            name=f"{turn}-{number}",
            prompt=prompt(_length(load, number), vocabulary, (load.salt, turn, number)),
            new_tokens=load.new_tokens,
            conversation=f"{turn}-{number}",
        )
        for number in range(load.at_once + load.arriving)
    ]


def _length(load: Load, number: int) -> int:
    """Return the length of a prompt. Mixed lengths are drawn so that each doubling is equally likely."""
    if load.longest_tokens is None:
        return load.prompt_tokens
    share = Random(f"{load.salt}-{number}").random()
    return round(load.prompt_tokens * (load.longest_tokens / load.prompt_tokens) ** share)


def _intruder(load: Load, vocabulary: int, turn: int) -> GenerationRequest:
    name = f"{turn}-{INTRUDER}"
    tokens = prompt(load.intruder_tokens or 0, vocabulary, (load.salt, turn, INTRUDER))
    return GenerationRequest(name, tokens, load.new_tokens, name)
