"""The report as one HTML file with its plots; it loads nothing. Pure."""

from __future__ import annotations

from html import escape
from typing import Any

from midstream.bench.plots import Axis, Lines, Points, plot
from midstream.bench.report import SHARES, TITLES, lines, shown

_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 48rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .25rem .5rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; } .rule { stroke: #8884; }
pre { overflow-x: auto; }
"""
_PERCENTS = (10.0, 25.0, 50.0, 75.0, 90.0, 99.0)
Facts = dict[str, Any]


def page(report: Facts, curves: Lines) -> str:
    """Return the file. `report`: from `report.facts`; `curves`: from `curves_of`, by the names of durations."""
    title = f"{report['url']}: {report['model']}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(report['plan']['in_words'])}</p>",
        _table(report),
        *(f"<p><strong>{escape(note)}</strong></p>" for note in report["warnings"]),
        "<h2>How long it took</h2>",
        _durations(curves, "first_token", "accepted", "ready"),
        _durations(curves, "gap"),
        _durations(curves, "cancelled", "stopped"),
        "<h2>As time went by</h2>",
        _over_time(report["time_line"]),
        f"<h2>In words</h2><pre>{escape(chr(10).join(lines(report)))}</pre>",
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(body)}</body></html>\n'


def _table(report: Facts) -> str:
    labels = (*SHARES, "most")
    head = "".join(f"<th>{label}</th>" for label in ("milliseconds", "count", *labels))
    rows = []
    for name, title in TITLES.items():
        figures = report["durations"][name]
        unit = "" if name == "tokens_per_s" else "_ms"
        cells = (title, f"{figures['count']:,}", *(shown(figures[f"{label}{unit}"]) for label in labels))
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _durations(curves: Lines, *names: str) -> str:
    ticks = tuple((percent, f"{percent:g} %") for percent in _PERCENTS)
    chosen = {TITLES[name]: curves[name] for name in names}
    return plot(chosen, across=Axis("so many are done within", ticks), up=Axis("milliseconds"))


def _over_time(line: Facts) -> str:
    slice_s = line["slice_s"]

    def each(name: str, scale: float = 1.0) -> Points:
        return [(place * slice_s, value * scale) for place, value in enumerate(line[name])]

    seconds = Axis("seconds")
    return (
        plot({"pieces of text a second": each("pieces", 1 / slice_s)}, across=seconds, up=Axis("texts/s"))
        + plot({"conversations at once": each("talking")}, across=seconds, up=Axis("conversations"))
        + plot(
            {"replies": each("ended", 1 / slice_s), "errors": each("errors", 1 / slice_s)},
            across=seconds,
            up=Axis("a second"),
        )
    )
