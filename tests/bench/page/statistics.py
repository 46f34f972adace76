"""Makes figures of visits: medians and their targets. A further figure is a further row. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import NamedTuple

from tests.bench.engine.report import Measured, Target
from tests.bench.page.records import Round, Visit

KB = 1000


class Row(NamedTuple):
    """One figure of each visit. `first`, `reload`: targets, if any."""

    label: str
    unit: str
    read: Callable[[Visit], float | None]
    first: Target | None = None
    reload: Target | None = None


def _at_most(value: float) -> Target:
    return Target(value, at_most=True)


ROWS = (
    Row("usable", "s", lambda visit: visit.usable_ms / 1000, _at_most(1.5), _at_most(0.7)),
    Row("over the line", "KB", lambda visit: sum(visit.wire_bytes.values()) / KB, _at_most(150)),
    Row("requests", "", lambda visit: visit.requests),
    Row("round trips in a row until usable", "", lambda visit: visit.in_a_row),
    Row("first paint", "s", lambda visit: visit.paint_ms / 1000),
    Row("history shown", "s", lambda visit: None if visit.shown_ms is None else visit.shown_ms / 1000),
    Row("elements", "", lambda visit: visit.nodes),
    Row("memory of scripts", "MB", lambda visit: visit.heap_mb),
)
VISITS: dict[str, tuple[Callable[[Round], Visit], Callable[[Row], Target | None]]] = {
    "first visit": (lambda made: made.first, lambda row: row.first),
    "reload": (lambda made: made.reload, lambda row: row.reload),
}


def findings(rounds: Sequence[Round]) -> Iterator[Measured]:
    """Make figures of some rounds, one at least: medians."""
    for name, (visit_of, target_of) in VISITS.items():
        visits = [visit_of(made) for made in rounds]
        for row in ROWS:
            values = [value for visit in visits if (value := row.read(visit)) is not None]
            if values:
                yield Measured(
                    label=f"{name}: {row.label}",
                    value=median(values),
                    unit=row.unit,
                    target=target_of(row),
                    readings=_kinds(visits) if row.unit == "KB" else {},
                )


def _kinds(visits: Sequence[Visit]) -> dict[str, float]:
    """Return the medians of the bytes over the line, by kind."""
    kinds = sorted({kind for visit in visits for kind in visit.wire_bytes})
    return {kind: median(visit.wire_bytes.get(kind, 0.0) for visit in visits) / KB for kind in kinds}
