"""The size of the measurements: models, levels, lengths, rounds. Knows no contender."""

from __future__ import annotations

import msgspec

from tests.bench.engine.records import Bound, Cancels, Load, Memory, NextTurn
from tests.bench.engine.shapes import SMALL, TINY, Shape


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All sizes. `cut_s`: limit of a load; `repeat_s`: a measurement that took longer is not repeated. `throughput_share`
    of the budget is reserved for the throughput, as far as the first rounds of all other figures leave it.

    `streams` run beside what is measured, `long_tokens` is a long prompt.
    """

    models: tuple[Shape, ...] = (TINY, SMALL)
    dtypes: tuple[str, ...] = ("bfloat16",)
    rounds: int = 3
    budget_s: float = 12 * 60.0
    throughput_share: float = 0.6
    cut_s: float = 40.0
    repeat_s: float = 20.0
    levels: tuple[int, ...] = (1, 4, 16, 32)
    prompt_tokens: int = 64
    new_tokens: int = 128
    mixed_tokens: tuple[int, int] = (200, 8000)
    """The shortest and the longest prompt of mixed lengths."""
    streams: int = 16
    steady_tokens: int = 192
    long_tokens: int = 4096
    reply_tokens: int = 32
    added_tokens: int = 32
    turns: int = 10_000
    settled: int = 1_000
    sockets: int = 32
    kv_bytes_of_turns: int = 4 * 2**20
    """Memory for keys and values in the test of growth: it is full before the first reading."""

    @property
    def dtype(self) -> str:
        """The dtype of all figures but the throughput."""
        return self.dtypes[0]

    @property
    def fullest(self) -> int:
        """The level with the most streams."""
        return max(self.levels)

    def load(self, at_once: int, number: int) -> Load:
        """Return a load of the throughput, with prompts of its own for each round."""
        return Load(
            at_once=at_once,
            prompt_tokens=self.prompt_tokens,
            new_tokens=self.new_tokens,
            cut_s=self.cut_s,
            salt=number,
        )

    def mixed(self, at_once: int, number: int) -> Load:
        """Return a load of mixed lengths with arrivals: for each ended reply a request comes, as many again in all."""
        shortest, longest = self.mixed_tokens
        return msgspec.structs.replace(
            self.load(at_once, number), prompt_tokens=shortest, longest_tokens=longest, arriving=at_once
        )

    def steady(self, number: int) -> Load:
        """Return a load without arrivals, long enough for percentiles."""
        return msgspec.structs.replace(self.load(self.streams, number), new_tokens=self.steady_tokens)

    def intrusion(self, number: int) -> Load:
        """Return a load that a long prompt joins; its streams outlast the prefill."""
        longer = self.new_tokens * 8
        return msgspec.structs.replace(
            self.load(self.streams, number), new_tokens=longer, intruder_tokens=self.long_tokens
        )

    def next_turn(self, number: int) -> NextTurn:
        """Return a conversation of two turns."""
        return NextTurn(
            history_tokens=self.long_tokens,
            reply_tokens=self.reply_tokens,
            added_tokens=self.added_tokens,
            salt=number,
        )

    def cancels(self) -> Cancels:
        """Return the cancels."""
        return Cancels(
            streams=self.streams, prompt_tokens=self.prompt_tokens, long_tokens=self.long_tokens, prefills=2
        )

    def bound(self) -> Bound:
        """Return the fullest load, whose steps are timed."""
        return Bound(at_once=self.fullest, prompt_tokens=self.prompt_tokens, new_tokens=self.new_tokens)

    def memory(self) -> Memory:
        """Return the many turns."""
        return Memory(turns=self.turns, settled=self.settled, at_once=self.fullest)


FULL = Plan()
QUICK = Plan(
    models=(TINY,), rounds=1, budget_s=120.0, cut_s=15.0, levels=(1, 4), new_tokens=16, streams=4,
    steady_tokens=16, long_tokens=400, reply_tokens=8, turns=200, settled=50, sockets=4,
)  # fmt: skip
"""A plan that only shows that everything works."""
