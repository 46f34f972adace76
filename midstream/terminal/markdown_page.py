"""The text of one reply as Markdown, as it is written."""

from __future__ import annotations

from midstream.terminal.live_rows import LiveRows
from midstream.terminal.markdown import Painter
from midstream.terminal.markdown_stream import MarkdownStream


class MarkdownPage:
    """Rewrites the live rows. `before`: the text that the reply continues."""

    def __init__(self, rows: LiveRows, before: str) -> None:
        self._rows = rows
        self._flow = MarkdownStream(Painter(rows.columns), before)
        self._before = before
        self._shown = ""

    def show(self, text: str) -> None:
        """Show the text so far."""
        self._shown = text
        self._rows.settle(*self._flow.take(self._before + text))

    def settle(self) -> None:
        """Fix what is shown."""
        if self._shown:
            self._rows.settle(self._flow.take(self._before + self._shown, is_whole=True)[0])

    def end(self, text: str) -> bool:
        """Show the text as it is kept; return whether more was shown that can't be removed."""
        was_more = self._flow.is_beyond(self._before + text)
        self._shown = text
        self.settle()
        return was_more
