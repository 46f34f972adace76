"""The report, as facts for programs and as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from midstream.bench.histogram import Histogram
from midstream.bench.plan import Plan
from midstream.bench.results import Results, Slice

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
LATE_S = 0.02
"""Seconds of own lag; beyond it the program measures its own slowness, too."""
TITLES = {
    "ready": "connected, to ready",
    "accepted": "message, to accepted",
    "first_token": "message, to the first text",
    "gap": "between two texts",
    "cancelled": "stop, to cancelled",
    "stopped": "stop, to the end",
    "reply": "message, to the end",
    "tokens_per_s": "tokens/s of a reply",
    "own_lag": "delay of this program",
}
Facts = dict[str, Any]


def facts(results: Results, plan: Plan, ready: Facts, url: str) -> Facts:
    """Return the whole report, for JSON. Names that end in `_ms` are milliseconds; None: no data.

    `ready`: the server's frame.
    """
    lasted_s = max(results.ended_at - results.begun, 1e-9)
    return {
        "url": url,
        "server": ready.get("server", {}),
        "model": plan.model or ready.get("model"),
        "plan": _plan(plan),
        "lasted_s": round(lasted_s, 3),
        "conversations": results.conversations,
        "left_out": results.left_out,
        "unfinished": results.unfinished,
        "replies": dict(results.ends),
        "tokens": results.tokens,
        "tokens_per_s": round(results.tokens / lasted_s, 2),
        "replies_per_s": round(results.replies / lasted_s, 3),
        "errors": dict(results.errors.most_common()),
        "durations": {name: _figures(name, one) for name, one in results.durations},
        "warnings": list(_warnings(results, plan)),
        "time_line": _time_line(results),
    }


def _plan(plan: Plan) -> Facts:
    cells = asdict(plan)
    return cells | {"prompts": len(plan.prompts), "in_words": plan.in_words}


def _figures(name: str, one: Histogram) -> Facts:
    scale, unit = (1, "") if name == "tokens_per_s" else (1000, "_ms")
    shares = {label: one.percentile(share) for label, share in SHARES.items()}
    ends = {"least": one.least if one.count else None, "mean": one.mean, "most": one.most or None}
    return {"count": one.count} | {
        f"{label}{unit}": None if value is None else round(value * scale, 3)
        for label, value in (shares | ends).items()
    }


def _warnings(results: Results, plan: Plan) -> Iterator[str]:
    late = results.durations.own_lag.percentile(0.99)
    if late is not None and late > LATE_S:
        yield f"This program itself lagged by up to {late * 1000:.0f} ms: the server may be better than these figures."
    if results.left_out:
        yield f"{results.left_out} conversations were left out, since {plan.at_most} were under way (--at-most)."
    if results.unfinished:
        yield f"{results.unfinished} conversations were given up at the end: their replies are not in the figures."
    if not results.replies:
        yield "No reply came to an end."


def _time_line(results: Results) -> Facts:
    line = results.line
    return {"slice_s": line.slice_s} | {
        name: [getattr(one, name) for one in line.slices] for name in Slice.__slots__
    }


def lines(report: Facts) -> Iterator[str]:
    """Return the report for a terminal."""
    server = report["server"]
    yield f"{server.get('name', 'a server')} {server.get('version', '')} at {report['url']}, model {report['model']}"
    yield report["plan"]["in_words"]
    yield ""
    yield f"{'milliseconds':<28}{'count':>8}" + "".join(f"{label:>10}" for label in (*SHARES, "most"))
    for name, title in TITLES.items():
        figures = report["durations"][name]
        if figures["count"]:
            unit = "" if name == "tokens_per_s" else "_ms"
            cells = (shown(figures[f"{label}{unit}"]) for label in (*SHARES, "most"))
            yield f"{title:<28}{figures['count']:>8,}" + "".join(f"{value:>10}" for value in cells)
    yield ""
    ends = ", ".join(f"{count:,} {reason}" for reason, count in report["replies"].items())
    yield f"{sum(report['replies'].values()):,} replies ({ends or 'none'}) in {report['conversations']:,} conversations"
    yield f"{report['tokens']:,} tokens: {report['tokens_per_s']:,.1f} a second over {report['lasted_s']:,.1f} s"
    yield "errors: " + (", ".join(f"{count:,} {code}" for code, count in report["errors"].items()) or "none")
    yield from (f"note: {warning}" for warning in report["warnings"])


def shown(value: float | None) -> str:
    """Return a figure with three significant digits, or all digits before the point."""
    if value is None:
        return "-"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2  # noqa: PLR2004
    return f"{value:,.{digits}f}"


def curves_of(results: Results) -> dict[str, list[tuple[float, float]]]:
    """Return each duration's distribution: the share in per cent within so many milliseconds."""
    return {name: list(_curve(one)) for name, one in results.durations}


def _curve(one: Histogram) -> Iterator[tuple[float, float]]:
    for percent in range(1, 100):
        if (value := one.percentile(percent / 100)) is not None:
            yield float(percent), value * 1000
