"""One engine process: start and stop from the gateway's side, and the messages over the socket pair between them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from sysconfig import get_paths

import msgspec

from engine.child_environment import child_environment
from engine.messages import FromEngine, ToEngine
from engine.options import EngineOptions

_LENGTH = struct.Struct(">I")
_LARGEST_READ = 1 << 18
_STDERR = 2
_LAST_WORDS_S = 1.0

log = logging.getLogger(__name__)


def pack(message: ToEngine | FromEngine) -> bytes:
    """Return an encoded message. Raises UnicodeEncodeError for text with a lone surrogate."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Splits a stream of bytes into the bodies of messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[bytes]:
        """Take more bytes; return the bodies that are complete now."""
        self._buffer += received
        bodies = []
        start = 0
        while (end := self._end_of_message(start)) <= len(self._buffer):
            bodies.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return bodies

    def _end_of_message(self, start: int) -> int:
        """Return where the message at `start` ends, or the first place where that may become known."""
        body = start + _LENGTH.size
        if body > len(self._buffer):
            return body
        (length,) = _LENGTH.unpack_from(self._buffer, start)
        return body + int(length)


class BlockingChannel:
    """The engine's end of the socket: one thread reads, any thread writes."""

    def __init__(self, connection: socket.socket) -> None:
        """Take a connected, blocking stream socket."""
        self._connection = connection
        self._writing = threading.Lock()
        self._decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)

    def send(self, message: FromEngine) -> None:
        """Send a message; wait if the gateway is late. Raises OSError once it is gone."""
        packed = pack(message)
        with self._writing:
            self._connection.sendall(packed)

    def receive(self) -> Iterator[ToEngine]:
        """Yield messages until the gateway closes its end. Raises OSError if the connection breaks."""
        unpacker = Unpacker()
        while received := self._connection.recv(_LARGEST_READ):
            for body in unpacker.feed(received):
                yield self._decoder.decode(body)


_ROOT = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]
"""The folder of the packages: a checkout, or Python's site-packages."""


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
