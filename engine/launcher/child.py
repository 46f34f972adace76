"""vLLM's process as the gateway sees it: started below a keeper, heard line by line, stopped with all that it started."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from engine.launcher.options import HOST, environment_of
from engine.launcher.progress import KEPT_LINES, LineSplitter, cause_of

GRACE_S = 10.0
"""How long vLLM has to end by itself."""
_KEEPER = Path(__file__).with_name("keeper.py")
_KEEPERS_OWN_S = 2.0
_LAST_WORDS_S = 2.0
_PIECE = 64 * 1024

log = logging.getLogger(__name__)


class Ending(NamedTuple):
    """How vLLM ended: in words, and whether by itself, so that another start would end the same way."""

    words: str
    by_itself: bool


class LaunchedProcess:
    """A running vLLM. Make one by `start`; `stop` it in any case."""

    def __init__(self, process: asyncio.subprocess.Process, on_line: Callable[[str], None]) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reading = asyncio.create_task(self._read(on_line), name="lines of vLLM")

    @classmethod
    async def start(
        cls, command: Sequence[str], key: str, on_line: Callable[[str], None], *, grace_s: float = GRACE_S
    ) -> LaunchedProcess:
        """Start a command. `on_line` is called for each line that it writes, and must not raise. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(_KEEPER), str(grace_s), *command),
            stdin=asyncio.subprocess.PIPE,  # the keeper ends all when this ends, and so when the gateway does
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment_of(os.environ, command[0], key),
            start_new_session=True,
        )
        return cls(process, on_line)

    async def wait(self) -> Ending:
        """Wait until vLLM ends, and its last lines have been read. Returns how it ended."""
        code = await self._process.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await asyncio.shield(self._reading)
        how = f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        cause = cause_of(self._lines)
        return Ending(f"vLLM {how}{f': {cause}' if cause else ''}".rstrip(".") + ".", code > 0)

    async def stop(self, deadline_s: float = GRACE_S + _KEEPERS_OWN_S) -> None:
        """Ask vLLM to end, and end it after a while. Nothing of it is left when this returns or is cancelled."""
        try:
            with suppress(ProcessLookupError):
                self._process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._process.wait()
        finally:
            self.kill()
            self._reading.cancel()
        await self._process.wait()

    def kill(self) -> None:
        """End all of it at once, without a word."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _read(self, on_line: Callable[[str], None]) -> None:
        output, splitter = self._process.stdout, LineSplitter()
        while output is not None and (data := await output.read(_PIECE)):
            for line in splitter.feed(data):
                self._lines.append(line)
                on_line(line)


@contextmanager
def reserved_port() -> Iterator[int]:
    """Give a free port of loopback's. Inside the block nobody else is given it; who asks to share it may listen there."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield int(holder.getsockname()[1])
