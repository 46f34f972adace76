"""One run of the benchmark: the current measurement, the remaining time, and the findings so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tests.bench.engine.budget import Budget
from tests.bench.engine.plan import Plan
from tests.bench.engine.report import Failure, Finding, Run
from tests.bench.engine.worker_pool import WorkerPool
from tests.bench.processes import MeasurementFailed

T = TypeVar("T")
W = TypeVar("W", bound=str)


@dataclass(slots=True)
class Session:
    """The argument of every figure, which measures through `once` and `rounds`, and leaves its findings here."""

    plan: Plan
    crew: WorkerPool
    budget: Budget
    progress: Callable[[str], None]
    kept_s: float = 0.0
    """Seconds that repetitions leave to the throughput."""
    findings: list[Finding] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    cuts: list[str] = field(default_factory=list)

    def once(self, what: str, act: Callable[[], T], *, key: Hashable = None) -> T | None:
        """Run a measurement and return its result. A failure is noted with its reason, and gives None."""
        started, starting_s = time.monotonic(), self.crew.starting_s
        try:
            return act()
        except MeasurementFailed as failure:
            self.failures.append(Failure(what, str(failure)))
            self.progress(f"  FAILED: {what}: {failure}")
            return None
        finally:
            self.budget.took(key or what, time.monotonic() - started - (self.crew.starting_s - starting_s))

    def wants_again(self, key: Hashable, *, kept_s: float = 0.0) -> bool:
        """True if a measurement that was done before is short enough to be repeated, and fits the remaining time."""
        return self.budget.allows(key, kept_s=kept_s) and not self.budget.took_longer(key, self.plan.repeat_s)

    def rounds(self, what: str, act: Callable[[int], T]) -> list[T]:
        """Run a measurement in every round that the budget allows; `act` gets the round's number."""
        done: list[T] = []

        def keep(_who: str, number: int) -> None:
            done.append(act(number))

        self.turns(what, (what,), keep)
        return done

    def turns(self, what: str, who: Sequence[W], act: Callable[[W, int], object]) -> None:
        """Give each its turn in every round that the budget allows. One that fails gets no further turn."""
        done = dict.fromkeys(who, 0)
        failed: set[W] = set()
        for number in range(self.plan.rounds):
            for one in who:
                key = what, one
                if one in failed or (number and not self.wants_again(key, kept_s=self.kept_s)):
                    continue
                before = len(self.failures)
                self.once(self._titled(what, one), partial(act, one, number), key=key)
                failed |= {one} if len(self.failures) > before else set()
                done[one] += 1
        self.cuts += [
            f"{self._titled(what, one)}: {count} of {self.plan.rounds} rounds"
            for one, count in done.items()
            if count < self.plan.rounds and one not in failed
        ]

    def found(self, finding: Finding) -> None:
        """Add a finding."""
        self.findings.append(finding)

    @staticmethod
    def _titled(what: str, who: str) -> str:
        return what if who == what else f"{who}, {what}"
