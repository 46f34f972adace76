"""Prints a report as one table: a column for each server, with its ratio to the first."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.report import EndpointResults, Report
from tests.bench.statistics import Figures

ROWS = {
    "tokens_per_s": "tokens/s, all clients",
    "first_token_p50_ms": "first token p50, ms",
    "first_token_p99_ms": "first token p99, ms",
    "gap_p50_ms": "between texts p50, ms",
    "gap_p99_ms": "between texts p99, ms",
    "tokens_per_text": "tokens per text",
    "cancelled_p50_ms": "cancel → cancelled p50, ms",
    "cancelled_p99_ms": "cancel → cancelled p99, ms",
    "done_p50_ms": "cancel → done p50, ms",
    "done_p99_ms": "cancel → done p99, ms",
    "steps_after": "steps after a cancel, most",
    "silent_ms": "all cancelled → idle, ms",
    "silent_cpu_ms": "all cancelled → idle, CPU ms",
}
WITHOUT_RATIO = frozenset({"tokens_per_text", "steps_after"})
NOT_MEASURED = "n/a"
TIMES = "\N{MULTIPLICATION SIGN}"
GAP = "  "


ENDPOINT_TARGET = 0.9
"""Share of the native endpoint's figure that another endpoint must reach."""
ENDPOINT_ROWS = {
    "tokens_per_s": "tokens/s, all clients",
    "tokens_share": "  of the native door's",
    "first_token_ms": "first token p50, ms",
    "first_token_share": "  native door's / this one's",
}


def table(report: Report) -> str:
    """Return the tables as text, a block for each number of clients: servers, then endpoints."""
    tables = [_aligned(list(_rows(report)))] if report.titles else []
    if report.doors and report.doors.levels:
        tables.append(_aligned(list(_endpoint_rows(report.doors))))
    return "\n\n".join(tables)


def _endpoint_rows(results: EndpointResults) -> Iterator[list[str]]:
    for clients, by_api in results.levels.items():
        yield [_clients(clients), *by_api]
        for name, title in ENDPOINT_ROWS.items():
            values = [getattr(one, name) for one in by_api.values()]
            yield [GAP + title, *(_endpoint_cell(name, value) for value in values)]


def _endpoint_cell(name: str, value: float) -> str:
    short = name.endswith("_share") and value < ENDPOINT_TARGET
    return f"{number(value)} (short of {ENDPOINT_TARGET})" if short else number(value)


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(_line(row, widths) for row in rows)


def _clients(count: int) -> str:
    return f"{count} client{'s' if count > 1 else ''}"


def cell(name: str, value: float | None, first: float | None) -> str:
    """Return a figure, with its ratio to the first column's if both are known."""
    if value is None:
        return NOT_MEASURED
    shown = number(value)
    if first is None or first <= 0 or name in WITHOUT_RATIO:
        return shown
    return f"{shown} ({number(value / first)}{TIMES})"


def number(value: float) -> str:
    """Return a number with about three significant digits and no exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}".removesuffix(".0")
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _rows(report: Report) -> Iterator[list[str]]:
    for level in report.workload.levels:
        yield [_clients(level.clients), *report.titles.values()]
        columns = [report.medians.get(name, {}).get(level.clients, Figures()) for name in report.titles]
        for name, title in ROWS.items():
            first, *others = [getattr(column, name) for column in columns]
            yield [
                GAP + title,
                cell(name, first, None),
                *(cell(name, other, first) for other in others),
            ]
        yield [""] * (len(report.titles) + 1)


def _line(row: list[str], widths: list[int]) -> str:
    heading, *cells = row
    shown = [text.rjust(width) for text, width in zip(cells, widths[1:], strict=True)]
    return GAP.join([heading.ljust(widths[0]), *shown]).rstrip()
