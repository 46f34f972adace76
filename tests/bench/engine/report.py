"""Findings with their targets: one flat list, for the table, the file and the picture."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tests.bench.machine import Machine


class Figure(StrEnum):
    """The parts, as `--only` names them."""

    MEMORY = "memory"
    CANCEL = "cancel"
    NEXT_TURN = "next-turn"
    BOUND = "bound"
    STEADY = "steady"
    PREFILL_GAP = "prefill-gap"
    SOCKETS = "sockets"
    THROUGHPUT = "throughput"


class Target(msgspec.Struct, frozen=True):
    """A target: at least `value`, or at most if `at_most` is set."""

    value: float
    at_most: bool = False

    def met_by(self, found: float) -> bool:
        """Return whether a value meets the target."""
        return found <= self.value if self.at_most else found >= self.value


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `value` is compared with the target; None if it could not be measured.

    `readings` are the medians that it is made of, by contender or part, in `unit`; `note` says what limits them.
    """

    label: str
    value: float | None
    unit: str = ""
    readings: dict[str, float] = {}
    target: Target | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """True if the target is met; None if there is no target, or no value."""
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
    """A failed measurement and its reason."""

    what: str
    why: str


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result. `date` is an ISO 8601 day; `cuts` list what the time budget left out."""

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
