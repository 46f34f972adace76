"""The workload of every server: the numbers of clients and replies, and the prompts. Knows no server."""

from __future__ import annotations

import msgspec

PROMPT = "Count from 1 to 500."
"""A prompt whose reply is longer than any that is measured. All clients send it, in conversations of their own: no server
shares the work of equal prompts that are this short."""


class Level(msgspec.Struct, frozen=True):
    """So many clients at once; each asks for `replies` replies, the next when the last has ended."""

    clients: int
    replies: int


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The whole workload. `budget_s`: no round is begun that would probably end later than this, in seconds."""

    levels: tuple[Level, ...]
    max_new_tokens: int
    rounds: int
    budget_s: float
    door_rounds: int = 7
    """Rounds of all endpoints of our own server, after the rounds of all servers."""
    warm_up_tokens: int = 8
    cancel_after_texts: int = 8
    """Deltas that a reader has seen when it presses Stop; each of several readers waits a little longer than the last."""

    @property
    def most_clients(self) -> int:
        """Clients of the fullest level."""
        return max(level.clients for level in self.levels)


FULL = Workload(
    levels=(Level(1, 8), Level(8, 2), Level(32, 1)), max_new_tokens=128, rounds=3, budget_s=7.5 * 60
)
QUICK = Workload(
    levels=(Level(1, 1), Level(4, 1)),
    max_new_tokens=32,
    rounds=1,
    budget_s=60,
    door_rounds=1,
    cancel_after_texts=4,
)
