"""Draws a report: the figures that a reader of docs/benchmarks.md wants at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.bench.report import Report
from tests.bench.table import number

PANELS = {
    "tokens_per_s": "Tokens per second, all clients\n(more is better)",
    "first_token_p50_ms": "Time to the first token, p50, ms\n(less is better)",
    "gap_p99_ms": "Gap between texts, p99, ms\n(less is better)",
    "silent_ms": "All replies cancelled → server idle, ms\n(less is better)",
}
COLOURS = ("#1f6feb", "#8957e5", "#bf3989", "#bc4c00")
MARKERS = ("o", "s", "D", "^")
SHARE = 0.8
"""Share of the room for one number of clients that its points fill."""


def draw(report: Report, path: Path) -> None:
    """Write a PNG: points, medians over the rounds, on a logarithmic scale (which is why there are no bars)."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
            axes.set_title(title, loc="left", fontsize=10)
            _points(axes, report, name)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        figure.supxlabel(_caption(report), fontsize=8, color="#57606a")
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _points(axes: Any, report: Report, name: str) -> None:
    levels = [level.clients for level in report.workload.levels]
    for column, (contender, title) in enumerate(report.titles.items()):
        figures = report.medians.get(contender, {})
        offset = SHARE * ((column + 0.5) / len(report.titles) - 0.5)
        axes.scatter([], [], color=COLOURS[column], marker=MARKERS[column], label=title)
        for place, clients in enumerate(levels):
            value = getattr(figures.get(clients), name, None)
            if value:
                _point(axes, (place + offset, value), column)
    if axes.texts:  # an empty plot has no logarithmic scale
        axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_xlim(-0.5, len(levels) - 0.5)
    axes.grid(axis="y", color="#d8dee4", linewidth=0.6)
    axes.set_xticks(range(len(levels)), [f"{clients} client{'s' * (clients > 1)}" for clients in levels])


def _point(axes: Any, at: tuple[float, float], column: int) -> None:
    axes.scatter(*at, color=COLOURS[column], marker=MARKERS[column], s=36, zorder=3)
    axes.annotate(number(at[1]), at, (0, 6), textcoords="offset points", ha="center", fontsize=7)


def _caption(report: Report) -> str:
    machine = report.machine
    return (
        f"{report.model}, {report.dtype} on {report.device}, greedy, {report.workload.max_new_tokens} new tokens. "
        f"{machine.processor}, {machine.cores} cores. transformers {machine.packages['transformers']}. {report.date}"
    )
