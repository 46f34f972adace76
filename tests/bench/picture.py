"""Draws a report: what a reader of the README wants to know at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from tests.bench.report import Report

PANELS = {
    "tokens_per_s": "Tokens per second, all clients\n(more is better)",
    "first_token_p50_ms": "Time to the first token, p50, ms\n(less is better)",
    "gap_p99_ms": "Gap between texts, p99, ms\n(less is better)",
    "silent_ms": "All replies cancelled → server idle, ms\n(less is better)",
}
COLOURS = ("#1f6feb", "#9aa4b2", "#6b7684", "#d29922", "#8957e5")
SHARE = 0.8
"""The part of the room for one number of clients that its bars fill."""


def draw(report: Report, path: Path) -> None:
    """Write a PNG. Bars are medians over the rounds, on a logarithmic scale."""
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 6.5), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
            axes.set_title(title, loc="left", fontsize=10)
            _bars(axes, report, name)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
        figure.supxlabel(_caption(report), fontsize=8, color="#57606a")
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _bars(axes: Any, report: Report, name: str) -> None:
    levels = [level.clients for level in report.workload.levels]
    width = SHARE / len(report.titles)
    for column, (contender, title) in enumerate(report.titles.items()):
        shown = report.medians.get(contender, {})
        heights = [getattr(shown[clients], name, None) if clients in shown else None for clients in levels]
        places = [place + (column + 0.5) * width - SHARE / 2 for place in range(len(levels))]
        bars = axes.bar(
            places, [height or 0 for height in heights], width, label=title, color=COLOURS[column]
        )
        axes.bar_label(bars, [_label(height) for height in heights], fontsize=7, padding=1)
    if any(shown.get_height() for shown in axes.patches):
        axes.set_yscale("log")
    axes.margins(y=0.12)
    axes.set_xticks(range(len(levels)), [f"{clients} client{'s' * (clients > 1)}" for clients in levels])


def _label(height: float | None) -> str:
    if height is None:
        return "n/a"
    return f"{height:,.0f}" if height >= 10 else f"{height:.1f}"


def _caption(report: Report) -> str:
    machine = report.machine
    return (
        f"The bundled demo model, {report.dtype} on {report.device}, greedy, {report.workload.max_new_tokens} new tokens. "
        f"{machine.processor}, {machine.cores} cores. transformers {machine.packages['transformers']}. {report.date}"
    )
