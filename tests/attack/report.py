"""Results of attacks: figures of the people beside them, memory, and marks."""

from __future__ import annotations

from collections import Counter

import msgspec

from tests.attack.attack import KB, MB, Cost
from tests.attack.bystanders import Latencies
from tests.bench.report import Failure, Machine, percentile

GAP_TIMES = 1.5
PING_MS = 50.0
ACCEPTED_TIMES = 2.0
GIVEN_BACK_S = 60.0
GIVEN_BACK = "given back, s"
OWN_BYTES = 6 * MB
"""Bytes that a process's memory moves by without an attack (the row `nobody`), and keeps."""
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
    """Refused messages, by the error's code."""
    faults: tuple[str, ...]


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the gateway, and of the engine if it is a process, in bytes. `given_back_s` None: not within the limit.

    `counted`: the most sockets or bodies at once.
    """

    before: int
    peak: int
    after: int
    given_back_s: float | None
    counted: int

    @property
    def each_bytes(self) -> float:
        """Bytes that each of them took."""
        return max(0, self.peak - self.before - OWN_BYTES) / max(1, self.counted)


class Mark(msgspec.Struct, frozen=True):
    """A value with an upper limit; None if it could not be measured, or never came, which misses any limit."""

    name: str
    value: float | None
    limit: float

    @property
    def met(self) -> bool:
        """True if the value is at most its limit."""
        return self.value is not None and self.value <= self.limit


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One attack by so many attackers. `told`: the server's answers by kind; `opened`: number of their sockets, in all.

    `calm_sent_bytes`: bytes of theirs that the bare socket took; `sent_bytes`: that the server took.
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
        """All limits, in the table's order."""
        calm, attacked = self.calm, self.attacked
        return (
            Mark("gap p99, times calm", _times(attacked.gap_p99_ms, calm.gap_p99_ms), GAP_TIMES),
            Mark("ping p99, ms", attacked.ping_p99_ms, PING_MS),
            Mark("accepted p90, times calm", _times(attacked.accepted_p90_ms, calm.accepted_p90_ms), ACCEPTED_TIMES),
            Mark("refused or lost", float(sum(attacked.refusals.values()) + len(attacked.faults)), 0.0),
            Mark("KB a socket, or a body", self.memory.each_bytes / KB, self.cost.limit_bytes / KB),
            Mark(GIVEN_BACK, self.memory.given_back_s, GIVEN_BACK_S),
        )  # fmt: skip

    @property
    def met(self) -> bool:
        """True if every limit is met."""
        return all(mark.met for mark in self.marks)

    @property
    def left_something(self) -> bool:
        """True if the server is not as it was before: the next attack needs a new one."""
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
        """True if all attacks ran, and every mark is met."""
        return not self.failures and all(trial.met for trial in self.trials)


def figures(noticed: Latencies) -> Figures:
    """Return the figures of the observations."""

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
