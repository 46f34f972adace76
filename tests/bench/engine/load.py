"""One load of a contender: requests in, the time of each token out, and their rate. Knows no contender by name."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from time import perf_counter
from typing import NamedTuple, Protocol

import msgspec

TEMPERATURE, TOP_P = 0.8, 0.95


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

    `cut_s`: all is cancelled after this time, and tokens until then count. `salt` varies prompts.
    """

    at_once: int
    prompt_tokens: int
    new_tokens: int
    cut_s: float
    salt: int = 0


WARM_UP = (Load(at_once=1, prompt_tokens=64, new_tokens=4, cut_s=30),) * 2 + (
    Load(at_once=16, prompt_tokens=32, new_tokens=4, cut_s=30),
)
"""The first steps of a process are slow, for every contender."""


class Observed(msgspec.Struct, frozen=True):
    """The outcome of a load: when it was sent, and when each token of any reply came. `cut`: replies had not ended in time."""

    sent: float
    arrivals: Sequence[float]
    cut: bool = False

    @property
    def tokens_per_s(self) -> float:
        """The tokens per second of all replies, from the request to the last token. 0 if there were none."""
        return len(self.arrivals) / (self.arrivals[-1] - self.sent) if self.arrivals else 0.0


def prompt(length: int, vocabulary: int, seed: object) -> list[int]:
    """Return token ids, different for each seed."""
    draw = Random(repr(seed))
    return [draw.randrange(vocabulary) for _ in range(length)]


def observe(contender: Contender, load: Load, *, vocabulary: int, turn: int) -> Observed:
    """Run a load to its end. `turn` makes the requests' names unique. Raises ContenderFailed."""
    names = [f"{turn}-{number}" for number in range(load.at_once)]
    prompts = [prompt(load.prompt_tokens, vocabulary, (load.salt, name)) for name in names]
    requests = [
        GenerationRequest(name, tokens, load.new_tokens, name)
        for name, tokens in zip(names, prompts, strict=True)
    ]
    running, arrivals, sent = set(names), list[float](), perf_counter()
    contender.submit(requests)
    while running and perf_counter() <= sent + load.cut_s:
        news = contender.wait()
        arrivals += [perf_counter()] * sum(one.tokens for one in news)
        running -= {one.name for one in news if one.ended}
    cut = bool(running)
    for name in running:
        contender.cancel(name)
    while running:
        running -= {one.name for one in contender.wait() if one.ended}
    return Observed(sent, arrivals, cut)
