"""What was found, beside what is asked for. One flat list, for the table, the file and the picture."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tests.bench.machine import Machine


class Figure(StrEnum):
    """What can be measured by itself: `--only`."""

    MEMORY = "memory"
    CANCEL = "cancel"
    NEXT_TURN = "next-turn"
    BOUND = "bound"
    STEADY = "steady"
    PREFILL_GAP = "prefill-gap"
    SOCKETS = "sockets"
    THROUGHPUT = "throughput"


class Target(msgspec.Struct, frozen=True):
    """What is asked for: at least `value`, or at most where `at_most` is set."""

    value: float
    at_most: bool = False

    def met_by(self, found: float) -> bool:
        """Whether a found value is good enough."""
        return found <= self.value if self.at_most else found >= self.value


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One figure: `value` is what the target is about, None where it could not be measured.

    `readings` are the medians it was made of, by contender or part, in `unit`; `note` says what limits them.
    """

    label: str
    value: float | None
    unit: str = ""
    readings: dict[str, float] = {}
    target: Target | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is no target, or no value."""
        if self.target is None or self.value is None:
            return None
        return self.target.met_by(self.value)


class Finding(Measured, frozen=True, kw_only=True):
    """A figure of the engine."""

    figure: Figure


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One load of one contender: `at_once` streams of a model, in a round. `cut`: it was stopped before its end."""

    model: str
    dtype: str
    contender: str
    at_once: int
    round: int
    tokens_per_s: float
    cut: bool = False


class Failure(msgspec.Struct, frozen=True):
    """What could not be measured, and why."""

    what: str
    why: str


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result. `date` is an ISO 8601 day; `cuts` say what the time budget left out."""

    date: str
    machine: Machine
    prompt_tokens: int
    new_tokens: int
    findings: tuple[Finding, ...]
    runs: tuple[Run, ...]
    failures: tuple[Failure, ...]
    cuts: tuple[str, ...]


def encode(report: EngineReport) -> bytes:
    """Return a report as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"


def decode(text: bytes) -> EngineReport:
    """Return the report in a file. Raises msgspec.ValidationError."""
    return msgspec.json.decode(text, type=EngineReport)
