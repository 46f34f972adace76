"""Rows that are rewritten in their place, and Markdown that grows: finished blocks stay, and no text is lost."""

from __future__ import annotations

import io
import re

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from rich.console import Console, RenderableType
from rich.text import Text

from midstream.terminal.screen import LiveRows, MarkdownPage

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


STYLE = re.compile(r"\x1b\[[0-9;]*m")
BLOCKS = [
    "# A heading\n",
    "A paragraph with **strong** words, `code` and a [link](http://a.example).\nA second line.\n",
    "- one\n- two\n  - inside\n- three\n",
    "1. first\n2. second\n\n3. third, later\n",
    "> a quotation\n> of two lines\n",
    "```python\ndef f(x):\n    return '''x\n'''\n```\n",
    "~~~\nno language\n",
    "| a | b |\n|---|--:|\n| 1 | two |\n",
    "---\n",
    "<think>no tag is lost</think>\n",
    "    indented code\n",
    "Ein schöner Satz 你好 👩‍👩‍👧.\n",
]


class Rows(LiveRows):
    """What is settled, and what may still change."""

    def __init__(self, columns: int = 60) -> None:
        super().__init__(Console(file=io.StringIO(), force_terminal=True, width=columns))
        self.settled: list[str] = []
        self.live: list[str] = []

    def settle(self, *settled: RenderableType, live: Text | None = None) -> None:
        self.settled += [row for content in settled for row in self._printed(content)]
        self.live = self._printed(live) if live else []

    def _printed(self, content: RenderableType) -> list[str]:
        with self.console.capture() as captured:
            self.console.print(content)
        return [row.rstrip() for row in STYLE.sub("", captured.get()).split("\n")[:-1]]


def page(columns: int = 60, before: str = "") -> tuple[MarkdownPage, Rows]:
    rows = Rows(columns)
    return MarkdownPage(rows, before), rows


def whole(text: str) -> list[str]:
    """All rows of a text that comes at once."""
    made, rows = page()
    made.end(text)
    return rows.settled


@settings(max_examples=200, deadline=None)
@given(blocks=some.lists(some.sampled_from(BLOCKS), max_size=5), data=some.data())
def test_however_a_text_is_cut_into_pieces_it_ends_the_same(blocks: list[str], data: some.DataObject) -> None:
    text = "\n".join(blocks)
    made, rows = page()
    for cut in sorted(data.draw(some.lists(some.integers(0, len(text)), max_size=8))):
        made.show(text[:cut])
    made.end(text)
    assert rows.settled == whole(text)


def test_a_block_is_final_once_another_one_begins() -> None:
    made, rows = page()
    made.show("One.\n\n**Tw")
    assert (rows.settled, rows.live) == ([], ["One.", "", "**Tw"])
    made.show("One.\n\n**Two**.\n")
    assert (rows.settled, rows.live) == (["One."], ["", "**Two**."])
    made.end("One.\n\n**Two**.\n\nThree.")
    assert (rows.settled, rows.live) == (["One.", "", "Two.", "", "Three."], [])


def test_what_rich_would_drop_is_shown() -> None:
    text = "\n".join(
        whole("<div>A [link](http://a.example/x) and ![a picture](b.png).\n\n[note]: http://c.example\n")
    )
    for part in ("<div>", "link (http://a.example/x)", "a picture (b.png)", "[note]: http://c.example"):
        assert part in text


def test_lines_of_a_paragraph_stay_lines() -> None:
    assert whole("Roses are red,\nviolets are blue.") == ["Roses are red,", "violets are blue."]


def test_what_would_steer_the_terminal_is_an_escape() -> None:
    shown = "".join(whole("Red: \x1b[31m, bell: \x07.\n\n```\n\x1b]0;title\x07\n```\n"))
    assert "\\x1b[31m" in shown
    assert "\x07" not in shown
    assert "\\x1b]0;title\\x07" in shown


def test_a_text_that_goes_on_shows_its_open_block_again() -> None:
    made, rows = page(before="One.\n\n```python\na = 1\nb =")
    made.end(" 2\n```\n")
    assert [row.strip() for row in rows.settled if row] == ["a = 1", "b = 2"]


def test_of_a_long_block_the_end_is_shown_while_it_grows() -> None:
    made, rows = page()
    words = [f"word{number}" for number in range(5000)]
    made.show(" ".join(words))
    assert 4000 < len(" ".join(rows.live)) < 10_000
    assert rows.live[-1].endswith(words[-1])
    made.end(" ".join(words))
    assert " ".join(rows.settled).split() == words


@pytest.mark.parametrize("columns", [12, 30, 60])
def test_cells_of_a_narrow_table_are_wrapped(columns: int) -> None:
    made, rows = page(columns)
    made.end("| algorithm | source |\n|---|---|\n| Mergesort | https://example.org/sorting/merge |\n")
    assert "…" not in "".join(rows.settled)
    letters = "".join("".join(rows.settled).split())
    assert all(letters.count(letter) >= "Mergesort".count(letter) for letter in "Mergesort")


def test_no_blank_rows_surround_a_table_or_code() -> None:
    for block in ("| a | b |\n|---|---|\n| 1 | 2 |\n", "```\ncode\n```\n"):
        settled = whole(f"{block}\nAfter.")
        assert settled[0].strip()
        assert settled[-2:] == ["", "After."]
        assert settled[-3].strip()
