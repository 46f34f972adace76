"""Prints a report as one table: a line for each figure, with its target and whether it is met."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tests.bench.engine.registry import TITLES
from tests.bench.engine.report import Failure, Measured, Target
from tests.bench.table import NOT_MEASURED, number

HEADING = ("figure", "measured", "value", "target", "")
VERDICTS = {True: "met", False: "NOT MET", None: ""}


class Tabled(Protocol):
    """The contents of the table."""

    @property
    def findings(self) -> Sequence[Measured]:
        """Findings, in the table's order."""
        ...

    @property
    def failures(self) -> Sequence[Failure]:
        """Failed measurements."""
        ...

    @property
    def cuts(self) -> Sequence[str]:
        """Figures that the time budget left out."""
        ...


def table(report: Tabled) -> str:
    """Return the table as text, followed by the failures and what the budget left out."""
    rows = [HEADING, *(_row(finding) for finding in report.findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADING))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += [f"FAILED: {failure.what}: {failure.why}" for failure in report.failures]
    lines += [f"Left out: {cut}" for cut in report.cuts]
    return "\n".join(lines)


def shown(value: float | None, unit: str) -> str:
    """Return a value with its unit; a ratio has no space before its unit."""
    if value is None:
        return NOT_MEASURED
    digits = number(value) if value >= 0 else f"-{number(-value)}"
    return f"{digits}{unit}" if len(unit) <= 1 else f"{digits} {unit}"


def wanted(target: Target | None, unit: str) -> str:
    """Return a target with its comparison."""
    if target is None:
        return ""
    return f"{'≤' if target.at_most else '≥'} {shown(target.value, unit)}"


def _row(finding: Measured) -> tuple[str, ...]:
    titles = {str(name): title for name, title in TITLES.items()}
    readings = ", ".join(f"{titles.get(name, name)} {number(v)}" for name, v in finding.readings.items())
    measured = "; ".join(part for part in (readings, finding.note) if part)
    return (
        finding.label,
        measured,
        shown(finding.value, finding.unit),
        wanted(finding.target, finding.unit),
        VERDICTS[finding.met],
    )
