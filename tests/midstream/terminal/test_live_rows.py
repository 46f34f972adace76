"""Rows that are rewritten in their place, on a terminal that does what it is told."""

from __future__ import annotations

import io

import pyte
from hypothesis import given
from hypothesis import strategies as some
from rich.console import Console
from rich.text import Text

from midstream.terminal.screen import LiveRows

ROWS = some.lists(some.text("abc", max_size=9), max_size=6)


class Terminal:
    """A terminal of ten columns and five lines, and what was written to it."""

    def __init__(self) -> None:
        self.display = pyte.HistoryScreen(10, 5, history=1000, ratio=0.1)
        self.display.set_mode(pyte.modes.LNM)  # a line feed goes to the beginning of the next line
        self._stream = pyte.Stream(self.display)
        self.written = io.StringIO()
        self.rows = LiveRows(Console(file=self.written, force_terminal=True, width=10, height=5))

    def shown(self) -> list[str]:
        """All rows down to the cursor, those too that left the screen."""
        self._stream.feed(self.written.getvalue())
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
            terminal.rows.settle(*map(Text, rows))
            settled += rows
            live: list[str] = []
        else:
            terminal.rows.show(Text("\n".join(rows)))
            live = rows[-4:]
        assert terminal.shown() == [*settled, *(live or [""])]


def test_live_rows_that_are_too_long_are_wrapped_and_removed_with_their_wraps() -> None:
    terminal = Terminal()
    terminal.rows.show(Text("one two three four"))
    assert terminal.shown() == ["one two", "three four"]
    terminal.rows.settle(Text("Done."))
    assert terminal.shown() == ["Done.", ""]
