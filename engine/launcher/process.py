"""The gateway's side of vLLM's process: it starts under a keeper, is read line by line, and ends with all its children."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from engine.launcher.keeper import SIGNALLED
from engine.launcher.options import HOST, environment_of
from engine.launcher.progress import KEPT_LINES, LineSplitter, cause_of
from engine.process.child import terminate_process

GRACE_S = 10.0
"""How long vLLM has to end by itself."""
_KEEPER = Path(__file__).with_name("keeper.py")
_KEEPERS_OWN_S = 2.0
_LAST_WORDS_S = 2.0


class ExitReason(NamedTuple):
    """How vLLM ended, in words, and whether by itself: then another start would end the same way."""

    words: str
    by_itself: bool


class _OutputReader(asyncio.Protocol):
    """Passes on what vLLM writes, line by line, and keeps the last lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._splitter = LineSplitter()
        self.kept: deque[str] = deque(maxlen=KEPT_LINES)
        self.muted = False
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        for line in self._splitter.feed(data):
            self.kept.append(line)
            if not self.muted:
                self._on_line(line)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the process says how it ended
        self.ended.set()


class LaunchedProcess:
    """A running vLLM. Make one by `start`; `stop` it in any case."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        lines: _OutputReader,
        transport: asyncio.BaseTransport,
        lifeline: int,
    ) -> None:
        self._process = process
        self._lines = lines
        self._transport = transport
        self._lifeline: int | None = lifeline

    @classmethod
    async def start(
        cls, command: Sequence[str], key: str, on_line: Callable[[str], None], *, grace_s: float = GRACE_S
    ) -> LaunchedProcess:
        """Start a command. `on_line` is called for each line that it writes, and must not raise. Raises OSError."""
        (reading, writing), (theirs, lifeline) = os.pipe(), os.pipe()
        loop, lines = asyncio.get_running_loop(), _OutputReader(on_line)
        transport, _ = await loop.connect_read_pipe(lambda: lines, os.fdopen(reading, "rb", 0))
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", str(_KEEPER), str(grace_s), *command),
                stdin=theirs,  # when this closes, as it does when the gateway ends, the keeper ends everything
                stdout=writing,
                stderr=writing,
                env=environment_of(os.environ, command[0], key),
                start_new_session=True,
            )
        except BaseException:
            transport.close()
            os.close(lifeline)
            raise
        finally:
            os.close(writing)
            os.close(theirs)
        return cls(process, lines, transport, lifeline)

    async def wait(self) -> ExitReason:
        """Wait until vLLM ends, and its last lines have been read. Returns how it ended."""
        code = await self._process.wait()
        with suppress(TimeoutError):  # if a process that left its group keeps the pipe open
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._lines.ended.wait()
        cause = cause_of(self._lines.kept)
        number = -code if code < 0 else code - SIGNALLED
        how = f"was ended by {signal.Signals(number).name}" if number > 0 else f"ended with exit code {code}"
        return ExitReason(
            f"vLLM {how}{f': {cause}' if cause else ''}".rstrip(".") + ".", by_itself=number <= 0
        )

    async def stop(self, deadline_s: float = GRACE_S + _KEEPERS_OWN_S) -> None:
        """Ask vLLM to end, and kill it after `deadline_s`. Nothing of it is left when this returns or is cancelled.

        What it writes meanwhile is not passed on, since its processes complain about each other's end.
        """
        self._lines.muted = True
        try:
            await terminate_process(self._process, deadline_s)
        finally:
            self.kill()
            self._transport.close()
            if self._lifeline is not None:
                os.close(self._lifeline)
                self._lifeline = None
        await self._process.wait()

    def kill(self) -> None:
        """Kill all of its processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


@contextmanager
def reserved_port() -> Iterator[int]:
    """Give a free port of loopback. Inside the block nobody else gets it, but a process that asks to share it may listen."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield int(holder.getsockname()[1])
