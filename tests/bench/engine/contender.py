"""What is asked of every contender: requests in, news of tokens out. And the prompts, which are the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

TEMPERATURE = 0.8
TOP_P = 0.95


class ContenderFailed(Exception):
    """A contender refused a request, or gave it up. The message is for people."""


class Asked(NamedTuple):
    """One request: token ids in, `new_tokens` wanted. `conversation` is whose cached prompts it may begin with."""

    name: str
    prompt: Sequence[int]
    new_tokens: int
    conversation: str


class News(NamedTuple):
    """What came for one request: so many tokens more, and whether they were the last."""

    name: str
    tokens: int
    ended: bool


class Contender(Protocol):
    """Serves requests, all sampled with the same temperature and top-p. Used from one thread."""

    def submit(self, requests: Sequence[Asked]) -> None:
        """Take requests that come at the same moment."""
        ...

    def wait(self) -> Sequence[News]:
        """Wait for what comes next, at most for a moment. Raises ContenderFailed."""
        ...

    def cancel(self, name: str) -> None:
        """End a request: no more than the news of its end are to come."""
        ...

    def close(self) -> None:
        """End what the contender has running."""
        ...


def prompt(length: int, vocabulary: int, seed: object) -> list[int]:
    """Return token ids, other ones for each seed."""
    draw = Random(repr(seed))
    return [draw.randrange(vocabulary) for _ in range(length)]
