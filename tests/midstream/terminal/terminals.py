"""Somebody at a terminal, or a file in place of one, in which `midstream chat` runs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyte
import pytest

from midstream.server_connection import socket_url
from midstream.terminal.session import kept_client_id

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"


def environment(home: Path) -> dict[str, str]:
    own = {"XDG_CONFIG_HOME": str(home), "TERM": "xterm-256color"}
    return {**os.environ, **own, "COLUMNS": "80", "LINES": "24"}  # some programs export what is not true


def client_id_of(home: Path, url: str) -> str:
    """Return the client id that a chat with this environment uses for a server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(home))
        return kept_client_id(socket_url(url))


def command(address: str, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "app", "chat", address, *options)


class Terminal:
    """What is typed and shown. Rows that left the screen are still there above it."""

    def __init__(self, keyboard: int, process: asyncio.subprocess.Process) -> None:
        self._keyboard = keyboard
        self._process = process
        self._display = pyte.HistoryScreen(80, 24, history=10_000, ratio=0.1)
        self._stream = pyte.ByteStream(self._display)
        self._filled = 0  # rows with text when a line was last ended

    def types(self, keys: str) -> None:
        if ENTER in keys:
            self._filled = len(self._filled_rows)
        os.write(self._keyboard, keys.encode())

    def enters(self, line: str) -> None:
        self.types(line + ENTER)

    async def says(self, line: str) -> None:
        """Enters a line at the next prompt."""
        await self.prompts()
        self.enters(line)

    @property
    def rows(self) -> list[str]:
        """All rows, those too that left the screen at its top, without the blanks behind their text."""
        above = [
            "".join(row[at].data for at in range(self._display.columns)) for row in self._display.history.top
        ]
        return [row.rstrip() for row in [*above, *self._display.display]]

    @property
    def text(self) -> str:
        return "\n".join(self.rows)

    async def shows(self, text: str, *, times: int = 1) -> None:
        """Waits until a text is shown so often."""
        while self.text.count(text) < times:
            await self._read()

    async def prompts(self) -> None:
        """Waits until the cursor stands at an empty prompt, below the line that was typed last."""
        while not (
            self._row == ">" and self._display.cursor.x == 2 and len(self._filled_rows) > self._filled
        ):
            await self._read()

    async def shows_question(self, question: str) -> None:
        """Waits until the cursor stands behind a question."""
        while not self._row.endswith(question.rstrip()):
            await self._read()

    async def exit_code(self) -> int:
        """Reads to the end of what is shown."""
        try:
            while True:
                await self._read()
        except OSError:  # nobody has the terminal open any more
            return await self._process.wait()

    @property
    def _filled_rows(self) -> list[str]:
        return [row for row in self.rows if row]

    @property
    def _row(self) -> str:
        """The row of the cursor."""
        return self._display.display[self._display.cursor.y].rstrip()

    async def _read(self) -> None:
        piece = await asyncio.get_running_loop().run_in_executor(None, os.read, self._keyboard, 65_536)
        self._stream.feed(piece)


@asynccontextmanager
async def chatting(address: str, home: Path, *options: str) -> AsyncIterator[Terminal]:
    keyboard, screen = pty.openpty()
    fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = await asyncio.create_subprocess_exec(
        *command(address, *options),
        stdin=screen,
        stdout=screen,
        stderr=screen,
        env=environment(home),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # or Ctrl-C would be no signal
    )
    os.close(screen)
    try:
        yield Terminal(keyboard, process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(keyboard)


async def piped(address: str, home: Path, lines: str, *options: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a chat whose lines come from a file."""
    file = home / "lines"
    file.write_text(lines)
    with file.open() as source:
        process = await asyncio.create_subprocess_exec(
            *command(address, *options),
            stdin=source,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(home),
        )
        out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()
