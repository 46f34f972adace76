"""The last rows of a terminal, rewritten in place. Knows the cursor, but not the rows' content."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TextIO

from rich.cells import cell_len

_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Marks around one change: a terminal that knows them shows it at once, others ignore them."""


def size_of(stream: TextIO) -> os.terminal_size:
    """Return the columns and rows of a terminal; 80 by 24 if unknown."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return os.terminal_size((80, 24))
    return size if size.columns and size.lines else os.terminal_size((80, 24))


class LiveRows:
    """Rows that may still change, below those that do not.

    The cursor is after the last live row, or at the beginning of an empty one. If there are more rows than
    the terminal has, the last are shown: rows that left the screen can't be changed. All settled rows are
    written, and then belong to the terminal.
    """

    def __init__(self, stream: TextIO, size: Callable[[], os.terminal_size] | None = None) -> None:
        self._stream = stream
        self._size = size or (lambda: size_of(stream))
        self._shown: list[str] = []
        self._columns = 0

    @property
    def columns(self) -> int:
        """The cells of a row: one less than the terminal has, which would begin a new row after its last."""
        return max(1, self._size().columns - 1)

    def show(self, rows: list[str]) -> None:
        """Replace the live rows. Each is narrower than the terminal."""
        rows = rows[-max(1, self._size().lines - 1) :]
        if rows != self._shown:
            self._write(self._change(rows))
            self._shown, self._columns = rows, self._size().columns

    def settle(self, rows: list[str], live: list[str] | None = None) -> None:
        """Replace the live rows by settled ones, with the new live ones below them."""
        if rows:
            self._write(f"{self._change(rows)}\r\n")
            self._shown = []
        self.show(live or [])

    def clear(self) -> None:
        """Remove the live rows."""
        self.show([])

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()

    def _change(self, rows: list[str]) -> str:
        """Return what changes the live rows to these, from the first that differs."""
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
        """Return the rows that these take now: a terminal that became narrower has wrapped them."""
        columns = self._size().columns
        if columns >= self._columns:
            return len(rows)
        cells = [cell_len(_STYLE.sub("", row)) for row in rows]
        return min(sum(max(1, -(-count // columns)) for count in cells), self._size().lines)
