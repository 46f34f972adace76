"""Draws a report: tokens per second of all contenders, and how far each target is met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Drawing

from tests.bench.chart import COLOURS, MARKERS
from tests.bench.engine.registry import TITLES, Name
from tests.bench.engine.report import EngineReport, Figure, Finding
from tests.bench.table import number

MET, NOT_MET = "#1a7f37", "#cf222e"
INCHES_A_LINE = 0.32
MOST = 10.0
"""Ratios are clipped to this and to its inverse: zero has no place on a logarithmic scale."""


def draw(report: EngineReport, path: Path) -> None:
    """Write a PNG: a panel of tokens/s for each model and dtype, and one of the targets."""
    rates = _rates(report)
    judged = [finding for finding in report.findings if finding.met is not None]
    height = 3.4 + INCHES_A_LINE * len(judged)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Drawing(figsize=(11, height), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=(3, max(1.0, height - 3.0)))
        above, below = parts
        if rates:
            for axes, place in zip(above.subplots(1, len(rates), squeeze=False).flat, rates, strict=True):
                _levels(axes, place, rates[place])
        _targets(below.subplots(), judged)
        figure.supxlabel(_caption(report), fontsize=8, color="#57606a")
        figure.savefig(path, dpi=110, metadata={"Software": None})


def _rates(report: EngineReport) -> dict[str, dict[str, dict[str, float]]]:
    """Return tokens/s by model with dtype, then level, then contender."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for finding in report.findings:
        if finding.figure is Figure.THROUGHPUT:
            place, level = finding.label.partition(":")[0].split(", ")
            found.setdefault(place, {})[level.removesuffix(" at once")] = finding.readings
    return found


def _levels(axes: Any, place: str, levels: dict[str, dict[str, float]]) -> None:
    axes.set_title(f"{place}: tokens per second", loc="left", fontsize=10)
    for row, name in enumerate(Name):
        points = [(at, readings[name]) for at, readings in enumerate(levels.values()) if readings.get(name)]
        if points:
            axes.plot(*zip(*points, strict=True), color=COLOURS[row], marker=MARKERS[row], label=TITLES[name])
        for point in points:
            axes.annotate(
                number(point[1]), point, (0, 6), textcoords="offset points", ha="center", fontsize=7
            )
    axes.set_yscale("log")
    axes.margins(y=0.2)
    axes.set_xticks(range(len(levels)), levels)
    axes.set_xlabel("at once")
    axes.grid(axis="y", color="#d8dee4", linewidth=0.6)
    axes.legend(frameon=False, fontsize=7)


def _targets(axes: Any, judged: list[Finding]) -> None:
    """Draw how many times each target is reached: right of the line is met."""
    axes.set_title("Targets: how many times reached (right of the line: met)", loc="left", fontsize=10)
    for row, finding in enumerate(reversed(judged)):
        reached = times_reached(finding)
        axes.plot(reached, row, "o", color=MET if finding.met else NOT_MET)
        axes.annotate(number(reached), (reached, row), (6, -3), textcoords="offset points", fontsize=7)
    axes.set_yticks(range(len(judged)), [finding.label for finding in reversed(judged)], fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1.0, color="#57606a", linewidth=0.8)
    axes.margins(x=0.15)
    axes.grid(axis="x", color="#d8dee4", linewidth=0.6)


def times_reached(finding: Finding) -> float:
    """Return a value as a share of its target, or the inverse if less is better: 1 or more meets the target."""
    if finding.target is None or finding.value is None:
        raise ValueError("only what has a target and a value can be judged")
    wanted, value = finding.target.value, finding.value
    worst, best = (wanted / MOST, wanted * MOST)
    kept = min(max(value, worst), best)
    return wanted / kept if finding.target.at_most else kept / wanted


def _caption(report: EngineReport) -> str:
    machine = report.machine
    return (
        f"Random weights, {report.prompt_tokens} tokens of prompt, {report.new_tokens} new ones, sampled. "
        f"{machine.processor}, {machine.cores} cores. transformers {machine.packages['transformers']}. {report.date}"
    )
