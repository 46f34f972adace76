"""The last rows of a terminal, rewritten in their place. Knows the cursor, and nothing of what stands in the rows."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Around what belongs together: a terminal that knows these shows it at once, others ignore them."""


def size_of(stream: TextIO) -> os.terminal_size:
    """Columns and rows of a terminal; 80 by 24 where it does not say."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return os.terminal_size((80, 24))
    return size if size.columns and size.lines else os.terminal_size((80, 24))


class LiveRows:
    """Rows that may still change, below those that do not.

    The cursor stands behind the last live row, or at the beginning of an empty one where there is none. Of more rows
    than the terminal has, the last are shown: what left the screen can't be taken back. Rows that are settled are all
    written, and are then the terminal's own.
    """

    def __init__(self, stream: TextIO, size: Callable[[], os.terminal_size] | None = None) -> None:
        self._stream = stream
        self._size = size or (lambda: size_of(stream))
        self._shown: list[str] = []
        self._columns = 0

    @property
    def columns(self) -> int:
        """How many cells a row may have: one less than the terminal, which would begin another one behind its last."""
        return max(1, self._size().columns - 1)

    def show(self, rows: list[str]) -> None:
        """Rows in place of those that are live. Each is narrower than the terminal."""
        rows = rows[-max(1, self._size().lines - 1) :]
        if rows != self._shown:
            self._write(self._change(rows))
            self._shown, self._columns = rows, self._size().columns

    def settle(self, rows: list[str], live: list[str] | None = None) -> None:
        """Rows in place of the live ones, for good; below them those that are live from here on."""
        if rows:
            self._write(f"{self._change(rows)}\r\n")
            self._shown = []
        self.show(live or [])

    def clear(self) -> None:
        """Takes the live rows away."""
        self.show([])

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _change(self, rows: list[str]) -> str:
        """What makes these rows of the live ones, beginning with the first that differs."""
        old = self._shown
        same = next((at for at, (a, b) in enumerate(zip(old, rows, strict=False)) if a != b), None)
        at = min(len(old), len(rows)) if same is None else same
        if at == len(old):
            return ("\r\n" if old and rows[at:] else "") + "\r\n".join(rows[at:])
        if at == len(old) - 1 < len(rows) and rows[at].startswith(old[at]):
            return "\r\n".join(
                [rows[at][len(old[at]) :], *rows[at + 1 :]]
            )  # it only grew: nothing is rewritten
        at = max(0, min(at, len(rows) - 1))
        up = self._height(old[at:]) - 1
        back = f"\r\x1b[{up}A" if up else "\r"
        return _BEGIN + back + "\r\n".join(f"{row}\x1b[K" for row in rows[at:]) + "\x1b[J" + _END

    def _height(self, rows: list[str]) -> int:
        """How many rows these take by now: a terminal that became narrower has broken them."""
        columns = self._size().columns
        if columns >= self._columns:
            return len(rows)
        cells = [cell_len(_STYLE.sub("", row)) for row in rows]
        return min(sum(max(1, -(-count // columns)) for count in cells), self._size().lines)
