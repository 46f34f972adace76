"""A process for sound, from the gateway's side: started, connected by a socket pair, ended."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from sysconfig import get_paths

import msgspec

from engine.child_environment import child_environment
from speech.process.messages import LENGTH, pack

_ROOT = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]
"""The folder of the packages: a checkout, or Python's installed packages."""
_STDERR = 2


class Child:
    """A running process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Never waits; does nothing once the process has ended."""
        if not self._writer.is_closing():
            self._writer.write(pack(message))

    async def bodies(self) -> AsyncIterator[bytes]:
        """Yield encoded messages until the process ends."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
                yield await self._reader.readexactly(length)

    def kill(self) -> None:
        """End the process at once."""
        with suppress(ProcessLookupError):
            self._process.kill()


@asynccontextmanager
async def running(module: str, *arguments: str) -> AsyncIterator[Child]:
    """Start a module as a process that ends with the context. Its arguments are its end of the socket, then these."""
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STDERR,
                env=_environment(),
            )
        except BaseException:
            writer.transport.abort()
            raise
    child = Child(process, reader, writer)
    try:
        yield child
    finally:
        child.kill()
        writer.transport.abort()
        await process.wait()


def _environment() -> dict[str, str]:
    """Return an environment in which a child finds the same sources from any folder."""
    environment = child_environment()
    if str(_ROOT) in get_paths().values():
        return environment
    inherited = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": os.pathsep.join([str(_ROOT), *([inherited] if inherited else [])])}
