"""A chat at a terminal: lines are edited with prompt-toolkit, replies are Markdown that is rewritten in place.

Keys that are typed during a reply are kept for the next prompt and not echoed, so that they do not appear in its text.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app_or_none, run_in_terminal
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import DummyHistory, FileHistory
from prompt_toolkit.input.typeahead import get_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from rich.console import Console
from rich.text import Text

from midstream.client import Client
from midstream.reply import Call, Reply
from midstream.terminal.call_prompts import CallPrompt
from midstream.terminal.chat_session import NAMES
from midstream.terminal.markdown_page import LiveRows, MarkdownPage, rows_of
from midstream.terminal.reply_view import Page, PlainPage, UserInterface
from midstream.terminal.texts import call_line, clean, end_text, is_whole, reasoning_text


@contextmanager
def cbreak(fd: int) -> Iterator[None]:
    """Keys are neither echoed nor gathered into lines, but Ctrl-C is a signal still."""
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)


Frame = dict[str, Any]
_PROMPT = FormattedText([("bold", "> ")])
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O.|.)")


class Screen(UserInterface):
    """The terminal of the process. `history`: the file of typed lines; None: none is kept."""

    is_watched = True

    def __init__(self, *, history: Path | None, is_plain: bool) -> None:
        self._rows = LiveRows(sys.stdout)
        self._is_dumb = Console().is_dumb_terminal
        self._is_plain = is_plain or self._is_dumb
        self._lines: PromptSession[str] = PromptSession(
            history=DummyHistory() if history is None else FileHistory(str(history)),
            completer=WordCompleter([f"/{name}" for name in NAMES], sentence=True),
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

        While something is printed above the prompt, also completions, prompt-toolkit restores the terminal's
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
        """Take typed keys that were not read yet: they are used after the reply."""
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
