"""Splits a window of Whisper's tokens at its timestamps: two in succession end a segment and begin the next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

TICK_S = 0.02
"""Seconds of one timestamp step."""
FRAMES_A_TICK = 2


class Piece(NamedTuple):
    """Tokens from `first` to before `last`, spoken from `start_s` to `end_s` of the window."""

    first: int
    last: int
    start_s: float
    end_s: float


def split(tokens: Sequence[int], first_time: int, frames: int) -> tuple[list[Piece], int]:
    """Return the pieces of a window of so many frames, and how many frames are finished.

    `first_time`: the token of 0.00 s; greater ones are later.
    """
    ticks = [token - first_time if token >= first_time else None for token in tokens]
    cuts = [place for place in range(1, len(ticks)) if None not in (ticks[place - 1], ticks[place])]
    if not cuts:
        return [_whole(ticks, frames)], frames
    # One timestamp at the end: nothing follows it. Two: a segment began there, and is recognized again.
    is_closed = ticks[-1] is not None and ticks[-2] is None
    if is_closed:
        cuts.append(len(ticks))
    starts = [0, *cuts[:-1]]
    pieces = [_piece(ticks, first, last) for first, last in zip(starts, cuts, strict=True)]
    return pieces, frames if is_closed else (ticks[cuts[-1] - 1] or 0) * FRAMES_A_TICK


def _piece(ticks: Sequence[int | None], first: int, last: int) -> Piece:
    return Piece(first, last, (ticks[first] or 0) * TICK_S, (ticks[last - 1] or 0) * TICK_S)


def _whole(ticks: Sequence[int | None], frames: int) -> Piece:
    known = [tick for tick in ticks if tick is not None]
    last = known[-1] if known and known[-1] > 0 else frames / FRAMES_A_TICK
    return Piece(0, len(ticks), 0.0, last * TICK_S)
