"""The gateway's side of one engine process: start, messages over a socket pair, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from sysconfig import get_paths

import msgspec

from engine.child_environment import child_environment
from engine.messages import FromEngine
from engine.options import EngineOptions
from engine.process.channel import Unpacker

_ROOT = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]
"""The folder of the packages: a checkout, or Python's site-packages."""
_STDERR = 2
_LAST_WORDS_S = 1.0

log = logging.getLogger(__name__)


class _MessageReader(asyncio.Protocol):
    """The gateway's end of the socket. Passes each message on as it arrives."""

    def __init__(self, receive: Callable[[FromEngine], None]) -> None:
        self._receive = receive
        self._unpacker = Unpacker()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
        self.ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        for body in self._unpacker.feed(data):
            self._receive(self._decoder.decode(body))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            log.warning("connection to the engine's process lost: %s", exc)
        self.ended.set()


class ChildProcess:
    """A running process. Make one by `spawn`; `stop` it in any case."""

    def __init__(
        self, process: asyncio.subprocess.Process, transport: asyncio.Transport, line: _MessageReader
    ) -> None:
        self._process = process
        self._transport = transport
        self._line = line

    @classmethod
    async def spawn(cls, options: EngineOptions, receive: Callable[[FromEngine], None]) -> ChildProcess:
        """Start a process. `receive` is called for each of its messages, and must not raise."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            transport, line = await loop.create_unix_connection(lambda: _MessageReader(receive), sock=ours)
            try:
                process = await _start(theirs.fileno(), options)
            except BaseException:
                transport.abort()
                raise
        return cls(process, transport, line)

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def send(self, packed: bytes) -> None:
        """Send a packed message. Never waits; nothing happens once the process is gone."""
        if not self._transport.is_closing():  # the connection breaks before the process's end is known
            self._transport.write(packed)

    async def wait(self) -> str:
        """Wait until the process ends by itself, and its last messages have been received. Returns how it ended."""
        code = await self._process.wait()
        with suppress(TimeoutError):  # if a child of the process keeps the connection open
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._line.ended.wait()
        if code >= 0:
            return f"The engine's process ended with exit code {code}."
        return f"The engine's process was ended by {signal.Signals(-code).name}."

    def kill(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def stop(self, deadline_s: float) -> None:
        """Ask the process to end, and kill it after `deadline_s`. It has ended when this returns or is cancelled."""
        try:
            await terminate_process(self._process, deadline_s)
        finally:
            self.kill()
            self._transport.abort()
        await self._process.wait()


async def terminate_process(process: asyncio.subprocess.Process, deadline_s: float) -> None:
    """Send SIGTERM, and wait for the end for `deadline_s`; after that the caller has to kill it."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(deadline_s):
            await process.wait()


async def _start(descriptor: int, options: EngineOptions) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *_command(descriptor, options),
        pass_fds=[descriptor],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=_STDERR,
        env=_environment(),
    )


def _command(descriptor: int, options: EngineOptions) -> list[str]:
    encoded = msgspec.json.encode(options).decode()
    return [sys.executable, "-P", "-m", __package__, str(descriptor), encoded]


def _environment() -> dict[str, str]:
    """Return an environment in which a child finds the same sources from any folder."""
    environment = child_environment()
    if str(_ROOT) in get_paths().values():
        return environment  # it is found anyway; named here, it would come before the standard library
    inherited = environment.get("PYTHONPATH")
    path = os.pathsep.join([str(_ROOT), *([inherited] if inherited else [])])
    return {**environment, "PYTHONPATH": path}
