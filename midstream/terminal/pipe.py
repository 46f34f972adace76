"""A chat in a pipe: its lines come from a file, its replies go to the output, failures to standard error."""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from midstream.terminal.call_prompts import CallPrompt
from midstream.terminal.reply_view import PlainPage, UserInterface
from midstream.terminal.texts import clean, is_whole

_READ_BYTES = 64 * 1024


def typed_lines(source: int) -> asyncio.Queue[str]:
    """Return a queue of lines as they are typed; an empty one is the end of the input.

    A thread reads them. A terminal that is made non-blocking for the event loop is non-blocking for standard
    output, too; and a file can't be waited for at all.
    """
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(RuntimeError):  # the loop is closed: the user left
            for line in _read(source):
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True, name="standard input").start()
    return lines


def _read(source: int) -> Iterator[str]:
    """Yield lines with their ends. A terminal that is gone ends its input."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    rest = ""
    with suppress(OSError):
        while piece := os.read(source, _READ_BYTES):
            *whole, rest = (rest + decoder.decode(piece)).split("\n")
            yield from (f"{line}\n" for line in whole)
    if rest:
        yield rest


Frame = dict[str, Any]
_UNASKED = "asks, and nobody can answer where the input is no terminal: it is denied"


def print_error(line: str) -> None:
    """Print a line to standard error, which is a terminal more often than not: a server may have chosen its words."""
    print(f"midstream: {clean(line)}", file=sys.stderr, flush=True)


class Pipe(UserInterface):
    """Files. `has_failed`: a line was refused, or a reply is incomplete."""

    is_watched = False

    def __init__(self) -> None:
        self._lines = typed_lines(sys.stdin.fileno())
        self.has_failed = False

    async def line(self) -> str | None:
        """Return the next line; None at the end of the file."""
        return await self._lines.get() or None

    async def confirm(self, question: str) -> bool:  # noqa: ARG002 - a file needs no confirmation
        """Confirm every command."""
        return True

    def print_lines(self, *lines: str) -> None:
        """Print the answer to a command."""
        print(*map(clean, lines), sep="\n", flush=True)

    def note(self, line: str) -> None:
        """Print nothing: nobody watches."""

    def clear_input(self) -> bool:
        """Return False: nothing is typed."""
        return False

    def wait(self, line: str) -> None:
        """Print nothing: nobody watches."""

    def show_past(self, message: Frame) -> None:
        """Print nothing: the output only has replies to the input."""

    def fail(self, line: str) -> None:
        """Print a failure to standard error."""
        self.has_failed = True
        print_error(line)

    def page(self, before: str) -> PlainPage:  # noqa: ARG002 - it was written with the earlier reply
        """Return a page for the text as it is; on a terminal without control characters."""
        return PlainPage(sys.stdout, clean if sys.stdout.isatty() else str)

    async def answer(self, call_prompt: CallPrompt) -> str | None:
        """Deny: nobody can be asked."""
        print_error(f"{call_prompt.call.name} {_UNASKED}.")
        return None

    def ended(self, reason: str) -> None:
        """Print that a reply is incomplete."""
        if not is_whole(reason):
            self.fail(f"the reply is not whole: {reason}")
