"""Line plots as SVG text. Pure; knows nothing of their meaning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 14, 40
_COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed")
_TICKS = 5

Points = Sequence[tuple[float, float]]
Lines = Mapping[str, Points]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its title and its labels. `ticks`: their places; empty: at round numbers."""

    title: str
    ticks: tuple[tuple[float, str], ...] = ()


def plot(lines: Lines, *, across: Axis, up: Axis) -> str:
    """Return an `<svg>` of named lines; without lines, a sentence that says so."""
    given = {name: points for name, points in lines.items() if points}
    if not given:
        return "<p>Nothing was seen of this.</p>"
    xs = [x for points in given.values() for x, _ in points]
    ys = [y for points in given.values() for _, y in points]
    x_ticks = across.ticks or _round_ticks(min(xs), max(xs))
    y_ticks = up.ticks or _round_ticks(0.0, max(ys))
    frame = _Frame(
        (min(*xs, x_ticks[0][0]), max(*xs, x_ticks[-1][0])), (min(0.0, *ys), max(*ys, y_ticks[-1][0]))
    )
    parts = [
        *(_tick_up(frame, *tick) for tick in y_ticks),
        *(_tick_across(frame, *tick) for tick in x_ticks),
        *(
            _line(frame, points, colour)
            for points, colour in zip(given.values(), _colours(given), strict=True)
        ),
        *(
            _legend(place, name, colour)
            for place, (name, colour) in enumerate(zip(given, _colours(given), strict=True))
        ),
        _text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 4, across.title, "middle"),
        f'<text transform="rotate(-90)" x="{-(HEIGHT - BOTTOM) / 2:.0f}" y="12" text-anchor="middle">{escape(up.title)}</text>',
    ]
    label = escape(f"{up.title} by {across.title}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


@dataclass(frozen=True, slots=True)
class _Frame:
    """Maps values to places in the picture."""

    across: tuple[float, float]
    up: tuple[float, float]

    def x(self, value: float) -> float:
        return LEFT + _share(value, self.across) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - _share(value, self.up) * (HEIGHT - TOP - BOTTOM)


def _share(value: float, ends: tuple[float, float]) -> float:
    least, most = ends
    return (value - least) / (most - least) if most > least else 0.5


def _round_ticks(least: float, most: float) -> tuple[tuple[float, str], ...]:
    """Return some round numbers that cover the range."""
    rough = max(most - least, 1e-9) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(size for size in (1, 2, 5, 10) if size * power >= rough * (1 - 1e-9))
    first, last = math.floor(least / step + 1e-9), math.ceil(most / step - 1e-9)
    return tuple((place * step, f"{place * step:,.10g}") for place in range(first, last + 1))


def _colours(lines: Lines) -> list[str]:
    return [_COLOURS[place % len(_COLOURS)] for place in range(len(lines))]


def _line(frame: _Frame, points: Points, colour: str) -> str:
    places = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="2"/>'


def _tick_up(frame: _Frame, value: float, label: str) -> str:
    y = frame.y(value)
    rule = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="rule"/>'
    return rule + _text(LEFT - 6, y + 4, label, "end")


def _tick_across(frame: _Frame, value: float, label: str) -> str:
    return _text(frame.x(value), HEIGHT - BOTTOM + 16, label, "middle")


def _legend(place: int, name: str, colour: str) -> str:
    y = TOP + 12 + 16 * place
    mark = f'<line x1="{LEFT + 12}" x2="{LEFT + 32}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
    return mark + _text(LEFT + 38, y + 4, name, "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
