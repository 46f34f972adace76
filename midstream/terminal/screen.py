"""A chat at a terminal: lines are edited with prompt-toolkit, replies are Markdown that is rewritten in place.

A block of Markdown is final once it is finished. Keys that are typed during a reply are not echoed, so that they do not
appear in its text. The next prompt has them, but no question: they were not meant for it.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app_or_none, run_in_terminal
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import DummyHistory, FileHistory
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live_render import LiveRender
from rich.markdown import Markdown, TableElement
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from midstream.terminal.texts import clean
from midstream.terminal.user_interface import Page, PlainPage, UserInterface

_PROMPT = FormattedText([("bold", "> ")])


class Screen(UserInterface):
    """The terminal of the process. `history`: the file of typed lines; None: none is kept."""

    is_watched = True
    why_unasked = ""

    def __init__(self, *, history: Path | None, is_plain: bool, commands: Sequence[str]) -> None:
        """`commands`: the names that are completed."""
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)  # rich would prefer an exported size, which no resize changes
        self._rows = LiveRows(Console())
        self._is_plain = is_plain or self._rows.console.is_dumb_terminal
        self._prompts: PromptSession[str] = PromptSession(
            history=DummyHistory() if history is None else FileHistory(str(history)),
            completer=WordCompleter([f"/{name}" for name in commands], sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=_keys(),
            prompt_continuation="  ",
        )
        self._questions: PromptSession[str] = PromptSession(key_bindings=_question_keys())

    async def line(self) -> str | None:
        """Return the next line; None once the user has left."""
        try:
            return await self._prompts.prompt_async(_PROMPT, handle_sigint=False)
        except EOFError:
            return None

    def drop_typed(self) -> None:
        """Drop what was typed before a question."""
        clear_typeahead(self._prompts.input)
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)

    async def ask(self, question: str) -> str:
        """Return the line that was typed for a question. Raises EOFError if the user left."""
        return await self._questions.prompt_async(question, handle_sigint=False)

    def clear_input(self) -> bool:
        """Clear the typed line; return whether there was one.

        While something (also completions) is printed above the prompt, prompt-toolkit restores the terminal's
        own mode: then Ctrl-C is a signal, and not a key.
        """
        app = self._prompts.app
        if not (app.is_running and app.current_buffer.text):
            return False
        app.current_buffer.reset()
        app.invalidate()
        return True

    def page(self, before: str) -> Page:
        """Return the page for a reply's text."""
        return PlainPage(clean) if self._is_plain else MarkdownPage(self._rows, before)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """While the block lasts, keys are neither echoed nor gathered into lines; Ctrl-C still sends a signal."""
        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
        tty.setcbreak(fd, termios.TCSANOW)
        try:
            yield
        finally:
            termios.tcsetattr(fd, termios.TCSANOW, before)

    def print_lines(self, *lines: str) -> None:
        """Print the answer to a command."""
        self._print("\n".join(lines))

    def note(self, line: str) -> None:
        """Print a note that is not part of the conversation."""
        self._print(line, "dim")

    def fail(self, line: str) -> None:
        """Print a failure."""
        self._print(line, "yellow")

    def wait(self, line: str) -> None:
        """Show what is waited for, until something else comes; an empty line shows nothing."""
        self._rows.show(Text(clean(line), style="dim"))

    def _print(self, words: str, style: str = "") -> None:
        """Print the client's own text, above the prompt if there is one."""
        text = Text(clean(words), style=style)
        app = get_app_or_none()
        if app is not None and app.is_running:
            run_in_terminal(lambda: self._rows.settle(text))
        else:
            self._rows.settle(text)


def _keys() -> KeyBindings:
    """Ctrl-C clears the line, or leaves if it is empty. Alt-Enter begins a new line."""
    keys = KeyBindings()

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=EOFError)

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


def _question_keys() -> KeyBindings:
    """Ctrl-C stops the reply that asks, as it does while the reply is written."""
    keys = KeyBindings()
    keys.add("c-c")(lambda _: signal.raise_signal(signal.SIGINT))
    return keys


class LiveRows:
    """Rows at the cursor that may still change, below those that do not; on a dumb terminal there are none.

    If the terminal becomes narrower, what it wraps of the live rows stays.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = LiveRender(Text())

    def show(self, text: Text) -> None:
        """Replace the live rows; of many, the last are shown: rows that left the screen can't be changed."""
        self.settle(live=text)

    def settle(self, *settled: RenderableType, live: Text | None = None) -> None:
        """Replace the live rows by settled ones, with the new live ones below them."""
        with self.console as console:  # all is written at once
            if not console.is_dumb_terminal:
                console.print(self._live.position_cursor(), end="")
            for content in settled:
                console.print(content)
            if not console.is_dumb_terminal:
                rows = (live or Text()).wrap(console, console.width)
                self._live.set_renderable(Text("\n").join(rows[-max(1, console.height - 1) :]))
                console.print(self._live, end="")


_PARSER = (
    MarkdownIt("commonmark")
    .enable(["strikethrough", "table"])
    .disable(["html_block", "html_inline", "image", "reference"])  # shown as text: rich would drop a part
)
_BLOCK_PARSER = MarkdownIt("commonmark").enable("table").disable(["html_block", "inline", "reference"])
_LIVE_CHARS = 4096
"""At least the last so many characters of the open block are shown: more than fit on a screen."""


class MarkdownPage:
    """Shows a growing text: finished blocks as Markdown, the open one as it is written, rewritten in place.

    `before`: the text that the reply continues. Only its open block is shown again.
    """

    def __init__(self, rows: LiveRows, before: str) -> None:
        self._rows = rows
        self._before = before
        self._shown = ""
        self._settled = _open_block(clean(before))
        self._lines = 0  # finished lines of the open block, at the last look for its end
        self._is_first = True

    def show(self, text: str) -> None:
        """Show the text so far."""
        self._shown = text
        whole = self._whole(text)
        end = self._settled
        if whole.count("\n", end) != self._lines:  # only a finished line can end a block
            end += _open_block(whole[end:])
            self._lines = whole.count("\n", end)
        self._settle(whole, end)

    def settle(self) -> None:
        """Fix what is shown."""
        if self._shown:
            whole = self._whole(self._shown)
            self._settle(whole, len(whole))

    def end(self, text: str) -> bool:
        """Show the text as it is kept; return whether more was shown that can't be removed."""
        was_more = self._settled > len(self._whole(text))
        self._shown = text
        self.settle()
        return was_more

    def _whole(self, text: str) -> str:
        return clean((self._before + text).removesuffix("\r"))  # a line feed may follow

    def _settle(self, whole: str, end: int) -> None:
        """Settle the text up to `end`; the rest may still change."""
        settled: list[RenderableType] = []
        for block in _blocks(whole[self._settled : end]):
            if not self._is_first:
                settled.append("")
            settled.append(_markdown(block, self._rows.console))
            self._is_first = False
        self._settled = max(self._settled, end)
        self._rows.settle(*settled, live=self._live(whole[end:]))

    def _live(self, text: str) -> Text:
        """Return the open block; of a long block, its end."""
        skipped = max(0, len(text) // _LIVE_CHARS - 1) * _LIVE_CHARS
        live = text[skipped:].strip("\n") if text.strip() else ""
        return Text(live if self._is_first or not live else f"\n{live}")


class _Table(TableElement):
    """A table whose cells are wrapped: rich would leave out what does not fit."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class _Markdown(Markdown):
    elements = Markdown.elements | {"table_open": _Table}


def _markdown(block: str, console: Console) -> SegmentLines:
    """Return the rows of one block, with its line breaks, and without the empty rows that rich puts around some."""
    markdown = _Markdown("", hyperlinks=False)  # not every terminal shows the address behind a link
    markdown.parsed = _PARSER.parse(block)
    for token in markdown.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    rows = console.render_lines(markdown, pad=False)
    filled = [at for at, row in enumerate(rows) if "".join(segment.text for segment in row).strip()]
    return SegmentLines(rows[filled[0] : filled[-1] + 1] if filled else [], new_lines=True)


def _block_lines(text: str) -> list[int]:
    """Return the lines at which the blocks of a text begin."""
    tokens = _BLOCK_PARSER.parse(text)
    return [token.map[0] for token in tokens if token.level == 0 and token.map and token.nesting >= 0]


def _blocks(text: str) -> Iterator[str]:
    lines = text.split("\n")
    for start, end in pairwise([*_block_lines(text), len(lines)]):
        yield "\n".join(lines[start:end])


def _open_block(text: str) -> int:
    """Return where the last block begins. An unfinished line may become anything: it does not count."""
    lines = text.split("\n")[:-1]
    starts = _block_lines("\n".join(lines))
    return sum(len(line) + 1 for line in lines[: starts[-1]]) if starts else 0
