"""A chat at a terminal: lines are edited with prompt-toolkit, replies are Markdown that is rewritten in place.

A block of Markdown is final once it is finished. Keys that are typed during a reply are kept for the next prompt and not
echoed, so that they do not appear in its text.
"""

from __future__ import annotations

import io
import os
import re
import select
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from markdown_it import MarkdownIt
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app_or_none, run_in_terminal
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import DummyHistory, FileHistory
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import Markdown, TableElement
from rich.table import Table
from rich.text import Text

from midstream.client import Client
from midstream.reply import Call, Reply
from midstream.server_connection import Frame
from midstream.terminal.texts import call_line, clean, end_text, is_whole, reasoning_text
from midstream.terminal.user_interface import CallPrompt, Page, PlainPage, UserInterface

_PROMPT = FormattedText([("bold", "> ")])
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O.|.)")


class Screen(UserInterface):
    """The terminal of the process. `history`: the file of typed lines; None: none is kept."""

    is_watched = True

    def __init__(self, *, history: Path | None, is_plain: bool, commands: Sequence[str]) -> None:
        """`commands`: the names that are completed."""
        self._rows = LiveRows(sys.stdout)
        self._is_dumb = Console().is_dumb_terminal
        self._is_plain = is_plain or self._is_dumb
        self._lines: PromptSession[str] = PromptSession(
            history=DummyHistory() if history is None else FileHistory(str(history)),
            completer=WordCompleter([f"/{name}" for name in commands], sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            key_bindings=_keys(),
            prompt_continuation="  ",
        )
        self._questions: PromptSession[str] = PromptSession(key_bindings=_question_keys())
        self._ahead: deque[str] = deque()  # lines that were typed before a question
        self._begun = ""  # and the unfinished one

    async def line(self) -> str | None:
        """Return the next line; None once the user has left."""
        if self._ahead:
            line = self._ahead.popleft()
            self._write(f"> {clean(line)}\n")
            return line
        begun, self._begun = self._begun, ""
        try:
            return await self._lines.prompt_async(_PROMPT, default=begun, handle_sigint=False)
        except EOFError:
            return None

    async def confirm(self, question: str) -> bool:
        """Return whether the answer is yes."""
        return (await self._answer(f"{question} [y/n] ") or "").strip().lower() in {"y", "yes"}

    async def answer(self, call_prompt: CallPrompt) -> str | None:
        """Return the line that was typed for a question about a call. Earlier lines do not count."""
        if not call_prompt.begun:
            self._keep_typed()
        return await self._answer(call_prompt.prompt)

    def clear_input(self) -> bool:
        """Clear the typed line; return whether there was one.

        While something (also completions) is printed above the prompt, prompt-toolkit restores the terminal's
        own mode: then Ctrl-C is a signal, and not a key.
        """
        app = self._lines.app
        if not (app.is_running and app.current_buffer.text):
            return False
        app.current_buffer.reset()
        app.invalidate()
        return True

    def print_lines(self, *lines: str) -> None:
        """Print the answer to a command."""
        self._print_rows([row for line in lines for row in self._line(line)])

    def note(self, line: str) -> None:
        """Print a note that is not part of the conversation."""
        self._print_rows(self._line(line, "dim"))

    def fail(self, line: str) -> None:
        """Print a failure."""
        self._print_rows(self._line(line, "yellow"))

    def wait(self, line: str) -> None:
        """Show what is waited for, until something else comes; an empty line shows nothing."""
        if not self._is_dumb:
            self._rows.show(self._line(line, "dim") if line else [])

    def page(self, before: str) -> Page:
        """Return the page for a reply's text."""
        if self._is_plain:
            return PlainPage(sys.stdout, clean)
        return MarkdownPage(self._rows, before)

    def show_past(self, message: Frame) -> None:
        """Show a message of the history."""
        if message["role"] == "user":
            first, *more = clean(message["content"]).split("\n")
            self._write("".join([f"> {first}\n", *(f"  {line}\n" for line in more)]))
            return
        if message.get("reasoning"):
            took = (message["usage"] or {}).get("reasoning_ms")
            self.note(reasoning_text(None if took is None else took / 1000))
        self.page("").end(message["content"])
        for call in message.get("calls", ()):
            self.note(call_line(Call.of(call)))
        self.ended(message["status"])

    async def show(self, client: Client, reply: Reply, *, before: str) -> None:
        """Show a reply to its end, and ask about its calls. Raises Disconnected, ClientError."""
        with cbreak(sys.stdin.fileno()):
            await super().show(client, reply, before=before)

    def ended(self, reason: str) -> None:
        """Print how a reply ended, if it is incomplete."""
        if not is_whole(reason):
            self.note(end_text(reason))

    async def _answer(self, words: str) -> str | None:
        try:
            return await self._questions.prompt_async(words, handle_sigint=False)
        except EOFError:
            return None

    def _keep_typed(self) -> None:
        """Keep typed keys that were not read yet, for the prompt after the reply."""
        fd = sys.stdin.fileno()
        typed = "".join(key.data for key in get_typeahead(self._lines.input)) + _waiting(fd)
        *lines, rest = re.split(r"[\r\n]", _ESCAPES.sub("", typed))
        lines = [self._begun + line if at == 0 else line for at, line in enumerate(lines)]
        self._ahead.extend(_printable(line) for line in lines)
        self._begun = _printable(rest if lines else self._begun + rest)

    def _line(self, words: str, style: str = "") -> list[str]:
        """Return the rows of a line of the client's own text."""
        return rows_of(Text(clean(words), style=style), self._rows.columns)

    def _print_rows(self, rows: list[str]) -> None:
        self._print_above_prompt(lambda: self._rows.settle(rows))

    def _write(self, text: str) -> None:
        self._print_above_prompt(lambda: sys.stdout.write(text))

    def _print_above_prompt(self, output: Callable[[], object]) -> None:
        """Print something, above the prompt if there is one."""
        app = get_app_or_none()
        if app is not None and app.is_running:
            run_in_terminal(output)
        else:
            output()
            sys.stdout.flush()


@contextmanager
def cbreak(fd: int) -> Iterator[None]:
    """While the block lasts, keys are neither echoed nor gathered into lines; Ctrl-C still sends a signal."""
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


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

    @keys.add("c-c")
    def _(_: KeyPressEvent) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    return keys


def _waiting(fd: int) -> str:
    """Return typed keys that were not read."""
    typed = b""
    with suppress(OSError):
        while select.select([fd], [], [], 0)[0] and (piece := os.read(fd, 4096)):
            typed += piece
    return typed.decode(errors="replace")


def _printable(line: str) -> str:
    return "".join(char for char in line if char.isprintable())


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
        """Return the output that changes the live rows to `rows`, from the first that differs."""
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
        """Return how many rows of the terminal `rows` take now: one that became narrower has wrapped them."""
        columns = self._size().columns
        if columns >= self._columns:
            return len(rows)
        cells = [cell_len(_STYLE.sub("", row)) for row in rows]
        return min(sum(max(1, -(-count // columns)) for count in cells), self._size().lines)


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
        settled: list[str] = []
        for block in _blocks(whole[self._settled : end]):
            settled += self._below_a_gap(_rows_of_markdown(block, self._rows.columns))
            self._is_first = False
        self._settled = max(self._settled, end)
        self._rows.settle(settled, self._live(whole[end:]))

    def _live(self, text: str) -> list[str]:
        """Return the rows of the open block; of a long block, those of its end."""
        if not text.strip():
            return []
        skipped = max(0, len(text) // _LIVE_CHARS - 1) * _LIVE_CHARS
        return self._below_a_gap(rows_of(Text(text[skipped:].strip("\n")), self._rows.columns))

    def _below_a_gap(self, rows: list[str]) -> list[str]:
        return rows if self._is_first else ["", *rows]


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


def rows_of(content: RenderableType, columns: int) -> list[str]:
    """Return the rows of what rich can render; styles end within their row."""
    console = Console(file=io.StringIO(), force_terminal=True, width=columns)
    with console.capture() as captured:
        console.print(content)
    return [row.rstrip(" ") for row in captured.get().split("\n")[:-1]]


def _rows_of_markdown(block: str, columns: int) -> list[str]:
    """Return the rows of one block, with its line breaks, and without the empty rows that rich puts around some."""
    markdown = _Markdown("", hyperlinks=False)  # not every terminal shows the address behind a link
    markdown.parsed = _PARSER.parse(block)
    for token in markdown.parsed:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    rows = rows_of(markdown, columns)
    filled = [at for at, row in enumerate(rows) if _STYLE.sub("", row).strip()]
    return rows[filled[0] : filled[-1] + 1] if filled else []


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
