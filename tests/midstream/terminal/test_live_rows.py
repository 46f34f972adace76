"""Rows that are rewritten in their place, on a terminal that does what it is told."""

from __future__ import annotations

import io
import os

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as some

from midstream.terminal.screen import LiveRows

ROWS = some.lists(some.text("ab\x1b[1m".replace("\x1b[1m", "c"), max_size=9), max_size=6)


class Terminal:
    """A terminal of ten columns and five lines, and what was written to it."""

    def __init__(self) -> None:
        self.display = pyte.HistoryScreen(10, 5, history=1000, ratio=0.1)
        self._stream = pyte.Stream(self.display)
        self.written = io.StringIO()
        self.rows = LiveRows(self.written, self.size)

    def size(self) -> os.terminal_size:
        return os.terminal_size((self.display.columns, self.display.lines))

    def shown(self) -> list[str]:
        """All rows down to the cursor, those too that left the screen."""
        self._stream.feed(self.written.getvalue().replace("\x1b[?2026h", "").replace("\x1b[?2026l", ""))
        self.written.seek(0)
        self.written.truncate()
        above = ["".join(row[at].data for at in range(10)) for row in self.display.history.top]
        return [row.rstrip() for row in [*above, *self.display.display[: self.display.cursor.y + 1]]]


@given(steps=some.lists(some.tuples(ROWS, some.booleans()), max_size=8))
def test_settled_rows_are_shown_once_and_live_ones_below_them(steps: list[tuple[list[str], bool]]) -> None:
    terminal = Terminal()
    settled: list[str] = []
    for rows, for_good in steps:
        if for_good:
            terminal.rows.settle(rows)
            settled += rows
            live: list[str] = []
        else:
            terminal.rows.show(rows)
            live = rows[-4:]
        assert terminal.shown() == [*settled, *(live or [""])]


def test_a_row_that_grows_is_not_written_anew() -> None:
    terminal = Terminal()
    terminal.rows.show(["One", "two"])
    terminal.shown()
    terminal.rows.show(["One", "two th"])
    assert terminal.written.getvalue() == " th"


def test_what_is_the_same_is_not_written() -> None:
    terminal = Terminal()
    terminal.rows.show(["One"])
    terminal.shown()
    terminal.rows.show(["One"])
    terminal.rows.settle([], ["One"])
    assert terminal.written.getvalue() == ""


@pytest.mark.parametrize("columns", [3, 5])
def test_a_terminal_that_became_narrower_has_broken_the_rows(columns: int) -> None:
    """They take more rows than were written, and are found all the same."""
    written = io.StringIO()
    size = os.terminal_size((10, 5))
    rows = LiveRows(written, lambda: size)
    rows.show(["12345678"])
    size = os.terminal_size((columns, 5))
    rows.show(["x"])
    up = -(-8 // columns) - 1
    assert f"\r\x1b[{up}A" in written.getvalue()
