"""A report as a table in Markdown, for the terminal and the docs: a value that misses its target is bold."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.engine.report import Measured, Target
from tests.bench.page.records import PageReport
from tests.bench.table import NOT_MEASURED, number

HEADING = ("Figure", "Seen", "Target")
NOTHING = "\N{EN DASH}"


def table(report: PageReport) -> str:
    """Return the table as text, followed by the failed measurements."""
    rows = [HEADING, *(_row(finding) for finding in report.findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADING))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, f"|{'|'.join('-' * (width + 2) for width in widths)}|")
    lines += [f"FAILED: {failure.what}: {failure.why}" for failure in report.failures]
    return "\n".join(lines)


def _row(finding: Measured) -> tuple[str, str, str]:
    seen = NOT_MEASURED if finding.value is None else _with_unit(finding.value, finding.unit)
    readings = [f"{name} {number(value)}" for name, value in finding.readings.items() if _is_printed(finding)]
    beside = f" ({', '.join(readings)})" if readings else ""
    bold = f"**{seen}**" if finding.met is False else seen
    requested = NOTHING if finding.target is None else _target_text(finding.target, finding.unit)
    return finding.label, bold + beside, requested


def _target_text(target: Target, unit: str) -> str:
    return f"{'≤' if target.at_most else '≥'} {_with_unit(target.value, unit)}"


def _with_unit(value: float, unit: str) -> str:
    digits = number(value) if value >= 0 else f"-{number(-value)}"
    return f"{digits} {unit}".rstrip()


def _is_printed(finding: Measured) -> bool:
    """Return whether a row is printed: bytes by kind, and zeros of a state without violations, are for the file."""
    return finding.unit != "KB" and finding.value != 0


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return f"| {' | '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))} |"
