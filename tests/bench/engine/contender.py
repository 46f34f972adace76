"""The interface of every contender: requests in, news of tokens out. And the prompts, which are the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

TEMPERATURE = 0.8
TOP_P = 0.95


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
        ...

    def wait(self) -> Sequence[TokenUpdate]:
        """Wait briefly for news, and return it. Raises ContenderFailed."""
        ...

    def cancel(self, name: str) -> None:
        """End a request: only the news of its end is still to come."""
        ...

    def close(self) -> None:
        """End the contender's running requests."""
        ...


def prompt(length: int, vocabulary: int, seed: object) -> list[int]:
    """Return token ids, different for each seed."""
    draw = Random(repr(seed))
    return [draw.randrange(vocabulary) for _ in range(length)]
