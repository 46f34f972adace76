"""Results of attacks: figures of the people beside them, memory, marks; as a table, and as the guide's exceptions."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import msgspec

from tests.attack.attack import Cost
from tests.attack.bystanders import Latencies
from tests.attack.client import KB, MB
from tests.bench import report
from tests.bench.report import NOT_MEASURED, Report, aligned, number, percentile

RESULTS = report.RESULTS / "attack.json"
GUIDE = report.RESULTS.with_name("attack.md")
GIVEN_BACK_S = 60.0
OWN_BYTES = 6 * MB
"""Bytes that a process's memory moves by without an attack (the row `nobody`), and keeps."""
MS = 1000
TIMES = "\N{MULTIPLICATION SIGN}"
GIVEN_BACK = "back s"
MISSED = "!"
EDGE = 0.9
"""The share of a limit above which a value that meets it is near it."""
COLUMNS = 100
BEGIN, END = "<!-- results: written by the program -->", "<!-- end of results -->"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the people beside an attack noticed. None: nothing of the kind happened."""

    gap_p99_ms: float | None
    ping_p99_ms: float | None
    accepted_p90_ms: float | None
    refusals: dict[str, int]
    """Refused messages, by the error's code."""
    faults: tuple[str, ...]

    @classmethod
    def of(cls, noticed: Latencies) -> Figures:
        """Return the figures of the observations."""

        def ms(times: list[float], share: float) -> float | None:
            found = percentile(times, share)
            return None if found is None else round(found * MS, 2)

        return cls(
            gap_p99_ms=ms(noticed.gaps, 0.99),
            ping_p99_ms=ms(noticed.pings, 0.99),
            accepted_p90_ms=ms(noticed.accepted, 0.9),
            refusals=dict(Counter(noticed.refusals)),
            faults=tuple(noticed.faults),
        )


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of the gateway, and of the engine if it is a process, in bytes. `given_back_s` None: not within the limit.

    `counted`: the most sockets or bodies at once.
    """

    before: int
    peak: int
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

    @property
    def is_near(self) -> bool:
        """True if the value meets its limit barely."""
        return self.met and self.limit > 0 and (self.value or 0) > EDGE * self.limit

    def __str__(self) -> str:
        if self.value is not None:
            return number(self.value)
        return f">{self.limit:g}" if self.name == GIVEN_BACK else NOT_MEASURED


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One attack by so many attackers. `told`: the server's answers by kind."""

    attack: str
    attackers: int
    cost: Cost
    calm: Figures
    attacked: Figures
    memory: Memory
    told: dict[str, int]

    @property
    def marks(self) -> tuple[Mark, ...]:
        """All limits, in the table's order."""
        calm, attacked, memory = self.calm, self.attacked, self.memory
        return (
            Mark(f"gap {TIMES}", _times(attacked.gap_p99_ms, calm.gap_p99_ms), 1.5),
            Mark("ping ms", attacked.ping_p99_ms, 50.0),
            Mark(f"accepted {TIMES}", _times(attacked.accepted_p90_ms, calm.accepted_p90_ms), 2.0),
            Mark("refused", float(sum(attacked.refusals.values()) + len(attacked.faults)), 0.0),
            Mark("KB each", memory.each_bytes / KB, self.cost.limit_bytes / KB),
            Mark(GIVEN_BACK, memory.given_back_s, GIVEN_BACK_S),
        )

    @property
    def missed(self) -> list[Mark]:
        """The limits that are missed."""
        return [mark for mark in self.marks if not mark.met]

    @property
    def left_something(self) -> bool:
        """True if the server is not as it was before: the next attack needs a new one."""
        return self.memory.given_back_s is None or "unanswered" in self.attacked.faults

    @property
    def progress(self) -> str:
        """The figures, and the server's most frequent answers to the attackers."""
        answers = ", ".join(f"{count} {what}" for what, count in Counter(self.told).most_common(5))
        cells = ", ".join(f"{mark.name} {_cell(mark)}" for mark in self.marks)
        return f"{cells}: {'short' if self.missed else 'met'}; told {answers or 'nothing'}"


class AttackReport(Report, kw_only=True):
    """The whole result; each attack lasted `seconds`."""

    seconds: float
    took_s: float = 0.0
    trials: list[Trial] = msgspec.field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True if all attacks ran, and every mark is met."""
        return not self.failures and not any(trial.missed for trial in self.trials)

    def table(self) -> str:
        """Return a line for each trial; a value that misses its mark has an exclamation mark."""
        names = [mark.name for mark in self.trials[0].marks] if self.trials else []
        rows = [
            (one.attack, str(one.attackers), *map(_cell, one.marks), "short" if one.missed else "met")
            for one in self.trials
        ]
        return aligned([("attack", "by", *names, ""), *rows], numbers=True)

    def conclude(self, out: Path | None) -> int:
        """Do the same as for all labs; a whole result is put into the guide, too."""
        if out == RESULTS:
            GUIDE.write_text(self.put_into(GUIDE.read_text()))
        return super().conclude(out)

    def markdown(self) -> str:
        """Return the guide's summary, a row for each attack by the most attackers that misses a limit, and those near one."""
        most = max(trial.attackers for trial in self.trials)
        machine = self.machine
        summary = f"{self.date}, {machine.cores} cores ({machine.processor}), {self.took_s / 60:.0f} minutes."
        for attackers in sorted({trial.attackers for trial in self.trials}):
            missed = [bool(trial.missed) for trial in self.trials if trial.attackers == attackers]
            who = f"{attackers} attacker{'s' if attackers > 1 else ''}"
            summary += f" With {who}, {missed.count(False)} of {len(missed)} attacks met all limits"
            summary += "; these missed some:" if attackers == most else "."
        of_most = [trial for trial in self.trials if trial.attackers == most]
        rows = [("attack", "missed"), ("---", "---")]
        rows += [
            (one.attack, ", ".join(f"{mark.name} {mark}" for mark in one.missed))
            for one in of_most
            if one.missed
        ]
        blocks = [textwrap.fill(summary, COLUMNS), "\n".join(f"| {' | '.join(row)} |" for row in rows)]
        blocks += [f"- Failed: {one.what}: {one.why}" for one in self.failures]
        if edges := [f"`{one.attack}`" for one in of_most if any(mark.is_near for mark in one.marks)]:
            near = f"With {most} attackers, these barely met a limit: {', '.join(edges)}."
            blocks.append(textwrap.fill(near, COLUMNS, break_on_hyphens=False))
        return "\n\n".join(blocks)

    def put_into(self, page: str) -> str:
        """Return a page with this between the marks of its results. Raises ValueError if there are none."""
        before, found, rest = page.partition(BEGIN)
        _, also, behind = rest.partition(END)
        if not (found and also):
            raise ValueError("the page has no place for results")
        return f"{before}{BEGIN}\n{self.markdown()}\n{END}{behind}"


def _cell(mark: Mark) -> str:
    return f"{mark}{'' if mark.met else MISSED}"


def _times(value: float | None, calm: float | None) -> float | None:
    return None if value is None or not calm else value / calm
