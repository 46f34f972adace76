"""Keeps a process for sound alive, and passes its answers to callers. A process that ends or stalls is restarted."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from sysconfig import get_paths
from typing import Any, Generic, TypeVar

import msgspec

from engine.machine import child_environment
from speech.errors import ModelLoadError, SpeechError
from speech.process.messages import LENGTH, Cancel, Failed, Refused, Working, pack

_STDERR = 2

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
"""Pauses before a restart: twice as long each time, until a process has worked."""

START_S = 15.0
"""How long a request waits for a process that is being started."""

STALL_S = 120.0
"""A segment has ten seconds of sound at most, and takes about as long on a busy core."""

Hello = TypeVar("Hello", bound=msgspec.Struct)

log = logging.getLogger(__name__)


_ROOT = Path(__file__).resolve().parents[len(__name__.split(".")) - 1]
"""The folder of the packages: a checkout, or Python's installed packages."""


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
async def running_child(module: str, *arguments: str) -> AsyncIterator[Child]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec(Generic[Hello]):
    """A kind of process. `who`: its name for people; `kinds`: its messages; `hello`: the message that it is ready."""

    who: str
    module: str
    arguments: tuple[str, ...] = ()
    kinds: Any
    hello: type[Hello]
    lost: type[SpeechError]


class PendingRequest:
    """A request to a process, and its answers. `due_since`: when the next one fell due; None: none is due."""

    def __init__(self, number: int, process: Child, lost: SpeechError) -> None:
        self.number = number
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.due_since: float | None = asyncio.get_running_loop().time()
        self._process = process
        self._lost = lost

    def send(self, message: msgspec.Struct) -> None:
        """Send more about it."""
        self._process.send(message)

    def set_answer_due(self, *, is_owed: bool) -> None:
        """Set whether an answer is due: a process that does not answer is ended after a while."""
        if not is_owed:
            self.due_since = None
        elif self.due_since is None:
            self.due_since = asyncio.get_running_loop().time()

    async def next(self) -> Any:
        """Return the next answer. Raises the trade's `lost`."""
        answers = await self.answers.get()
        if answers is None:
            raise self._lost
        if isinstance(answers, Failed):
            raise type(self._lost)(answers.why)
        return answers


class ProcessSupervisor(Generic[Hello]):
    """One process. `running` keeps it; `request` asks it."""

    def __init__(
        self, spec: WorkerSpec[Hello], *, stall_s: float = STALL_S, known: Hello | None = None
    ) -> None:
        """`stall_s`: how long it may be silent while an answer is due.

        `known`: its facts, so that it need not be started before the first request.
        """
        self._spec = spec
        self._stall_s = stall_s
        self._numbers = count()
        self._waiting: dict[int, PendingRequest] = {}
        self._child: Child | None = None
        self._hello = known
        self._is_wanted = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._first = asyncio.Event()
        self._refused = ""
        self._pause_s = FIRST_PAUSE_S
        self._received_at = 0.0

    @property
    def hello(self) -> Hello:
        """The process's facts; only within `running`."""
        assert self._hello is not None  # noqa: S101 - `running` sets it
        return self._hello

    @property
    def waiting(self) -> int:
        """The number of requests that wait for answers."""
        return len(self._waiting)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep a process alive while the context lasts. At the start raises ModelLoadError, or the trade's `lost`."""
        keeping = asyncio.create_task(self._keep())
        try:
            if self._hello is None:
                self._is_wanted.set()
                await self._first.wait()
                if self._refused:
                    raise ModelLoadError(self._refused)
                if not self._is_ready.is_set():
                    raise self._spec.lost(f"The {self._spec.who}'s process ended at its start.")
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    @asynccontextmanager
    async def request(
        self, question: Callable[[int], msgspec.Struct], *, lost: str
    ) -> AsyncIterator[PendingRequest]:
        """Ask, by a message with the given number; the work ends with the context.

        `lost`: the message if the process ends meanwhile. Raises the trade's `lost`.
        """
        process = await self._process()
        pending = PendingRequest(next(self._numbers), process, self._spec.lost(lost))
        self._waiting[pending.number] = pending
        process.send(question(pending.number))
        try:
            yield pending
        finally:
            del self._waiting[pending.number]
            process.send(Cancel(pending.number))

    async def _process(self) -> Child:
        """Return the running process. Raises the trade's `lost`, at once if the process refused at its last start."""
        self._is_wanted.set()
        if self._refused:
            raise self._spec.lost(self._refused)
        try:
            async with asyncio.timeout(START_S):
                await self._is_ready.wait()
        except TimeoutError:
            who = self._spec.who
            raise self._spec.lost(f"The {who} is not ready yet. Try again in a moment.") from None
        if self._refused:
            raise self._spec.lost(self._refused)
        assert self._child is not None  # noqa: S101 - `_is_ready` says so
        return self._child

    async def _keep(self) -> None:
        spec = self._spec
        await self._is_wanted.wait()
        while True:
            try:
                async with running_child(spec.module, *spec.arguments) as self._child:
                    await self._read(self._child)
            except OSError as error:
                log.warning("the %s's process could not be started: %s", spec.who, error)
            finally:
                self._lose()
            log.warning("the %s's process ended; it may be started again in %.1f s", spec.who, self._pause_s)
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
            if self._refused:
                self._is_wanted.clear()
                await self._is_wanted.wait()

    async def _read(self, process: Child) -> None:
        """Read until the process ends, or is silent for too long although it has work."""
        loop = asyncio.get_running_loop()
        reading = asyncio.create_task(self._take_all(process))
        try:
            while not reading.done():
                await asyncio.wait((reading,), timeout=self._stall_s / 4)
                if loop.time() - self._silent_since(loop.time()) > self._stall_s:
                    log.warning("the %s's process does not answer and is ended", self._spec.who)
                    return
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _silent_since(self, now: float) -> float:
        """Return when it last sent something, or an answer fell due, whichever was later; now if none is due."""
        due = [pending.due_since for pending in self._waiting.values() if pending.due_since is not None]
        return max(self._received_at, min(due, default=now))

    async def _take_all(self, process: Child) -> None:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(self._spec.kinds)
        async for body in process.bodies():
            self._received_at = asyncio.get_running_loop().time()
            self._take(decoder.decode(body))

    def _take(self, message: Any) -> None:
        if isinstance(message, self._spec.hello):
            self._hello, self._refused = message, ""
            self._is_ready.set()
            self._first.set()
        elif isinstance(message, Refused):
            self._refused = message.why
            self._is_ready.set()  # it refused: nobody needs to wait any longer
            log.error("the %s's process can't serve: %s", self._spec.who, message.why)
        elif not isinstance(message, Working):
            self._pause_s = FIRST_PAUSE_S
            if (pending := self._waiting.get(message.number)) is not None:
                pending.answers.put_nowait(message)

    def _lose(self) -> None:
        self._is_ready.clear()
        self._first.set()
        self._child = None
        for pending in self._waiting.values():
            pending.answers.put_nowait(None)
