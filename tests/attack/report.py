"""What attacks did: figures of the people beside them, memory, and what is asked for."""

from __future__ import annotations

from collections import Counter

import msgspec

from tests.attack.attack import KB, MB, Cost
from tests.attack.neighbours import Noticed
from tests.bench.engine.findings import Failure
from tests.bench.figures import percentile
from tests.bench.machine import Machine

GAP_TIMES = 1.5
PING_MS = 50.0
ACCEPTED_TIMES = 2.0
GIVEN_BACK_S = 60.0
OWN_BYTES = 6 * MB
"""A process's memory moves by this much whoever asks (the row `nobody`): it is nobody's cost, and stays."""
MS = 1000


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the people beside an attack noticed. None: nothing of the kind happened."""

    gap_p50_ms: float | None
    gap_p99_ms: float | None
    ping_p99_ms: float | None
    ping_max_ms: float | None
    accepted_p50_ms: float | None
    accepted_p90_ms: float | None
    refusals: dict[str, int]
    """Messages that were refused, by the error's code."""
    faults: tuple[str, ...]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Of the gateway, and of the engine where there is one, in bytes. `given_back_s` None: not within the limit.

    `counted`: how many sockets or bodies there were at once, at most.
    """

    before: int
    peak: int
    after: int
    given_back_s: float | None
    counted: int

    @property
    def each_bytes(self) -> float:
        """What each of them took."""
        return max(0, self.peak - self.before - OWN_BYTES) / max(1, self.counted)


class Mark(msgspec.Struct, frozen=True):
    """A value that must not be above its limit; None where it could not be had, which is above every limit."""

    name: str
    value: float | None
    limit: float

    @property
    def met(self) -> bool:
        """Whether it is not."""
        return self.value is not None and self.value <= self.limit


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One attack by so many attackers. `told`: what the server told them, by kind; `opened`: their sockets, one by one.

    `calm_sent_bytes`: what the bare socket took of them, beside `sent_bytes`, what the server did.
    """

    attack: str
    attackers: int
    cost: Cost
    calm: Figures
    attacked: Figures
    memory: Memory
    told: dict[str, int]
    sent_bytes: int
    calm_sent_bytes: int
    opened: int

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All that is asked for, in the table's order."""
        calm, attacked = self.calm, self.attacked
        return (
            Mark("gap p99, times calm", _times(attacked.gap_p99_ms, calm.gap_p99_ms), GAP_TIMES),
            Mark("ping p99, ms", attacked.ping_p99_ms, PING_MS),
            Mark("accepted p90, times calm", _times(attacked.accepted_p90_ms, calm.accepted_p90_ms), ACCEPTED_TIMES),
            Mark("refused or lost", float(sum(attacked.refusals.values()) + len(attacked.faults)), 0.0),
            Mark("KB a socket, or a body", self.memory.each_bytes / KB, self.cost.limit_bytes / KB),
            Mark("given back, s", self.memory.given_back_s, GIVEN_BACK_S),
        )  # fmt: skip

    @property
    def met(self) -> bool:
        """Whether all of it is."""
        return all(mark.met for mark in self.marks)

    @property
    def left_something(self) -> bool:
        """Whether the server is not as it was before: the next attack wants a new one."""
        return self.memory.given_back_s is None or "unanswered" in " ".join(self.attacked.faults)


class AttackReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result. `date` is an ISO 8601 day; each attack lasted `seconds`."""

    date: str
    machine: Machine
    seconds: float
    took_s: float
    trials: tuple[Trial, ...]
    failures: tuple[Failure, ...]

    @property
    def is_good(self) -> bool:
        """Whether all of it ran, and every mark is met."""
        return not self.failures and all(trial.met for trial in self.trials)


def figures(noticed: Noticed) -> Figures:
    """Return the figures of what was noticed."""

    def ms(times: list[float], share: float) -> float | None:
        found = percentile(times, share)
        return None if found is None else round(found * MS, 2)

    return Figures(
        gap_p50_ms=ms(noticed.gaps, 0.5),
        gap_p99_ms=ms(noticed.gaps, 0.99),
        ping_p99_ms=ms(noticed.pings, 0.99),
        ping_max_ms=ms(noticed.pings, 1.0),
        accepted_p50_ms=ms(noticed.accepted, 0.5),
        accepted_p90_ms=ms(noticed.accepted, 0.9),
        refusals=dict(Counter(noticed.refusals)),
        faults=tuple(noticed.faults),
    )


def encode(report: AttackReport) -> bytes:
    """Return a report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def _times(value: float | None, calm: float | None) -> float | None:
    return None if value is None or not calm else value / calm
