"""Processes for sound: the gateway's side, which keeps one alive, and the side of the process, which serves requests.

The two exchange messages over a socket pair. A process that ends or stalls is restarted. Owners take turns by pieces of
work, requests are read between steps, and the process ends with the gateway.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
import sys
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from engine.machine import module_environment
from speech.errors import ModelLoadError, SpeechError

log = logging.getLogger(__name__)
LENGTH = struct.Struct(">I")
_STDERR = 2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
"""Pauses before a restart: twice as long each time, until a process has worked."""
START_S = 15.0
"""How long a request waits for a process that is being started."""
STALL_S = 120.0
"""How long a process may be silent: a segment has ten seconds of sound at most, and takes about as long on a busy core."""
Hello = TypeVar("Hello", bound=msgspec.Struct)
T = TypeVar("T")


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for the request any more."""

    number: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The process can't serve, and ends. `why`: for the operator."""

    why: str


class Working(msgspec.Struct, frozen=True, tag=True):
    """Work on a piece, or a step of one, has begun."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A request failed. `why`: for its sender."""

    number: int
    why: str


def pack(message: msgspec.Struct) -> bytes:
    """Return an encoded message: its length in four bytes, big-endian, then msgpack."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


class WorkerProcess(Generic[Hello]):
    """One process, restarted whenever it ends. `running` keeps it alive; `request` sends it a request."""

    def __init__(
        self,
        *command: str,
        who: str,
        kinds: Any,
        hello: type[Hello],
        lost: type[SpeechError],
        stall_s: float = STALL_S,
        known: Hello | None = None,
    ) -> None:
        """`command`: a module and its arguments; `who`: the process's name for people; `kinds`: its messages.

        `hello`: the message that it is ready; `lost`: the error of requests to a process that ends; `stall_s`: how long
        it may be silent while an answer is due; `known`: its facts, so that it need not be started before the first request.
        """
        self._command = command
        self._who = who
        self._kinds = kinds
        self._hello_type = hello
        self._lost = lost
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
    def facts(self) -> Hello:
        """What the process said when it was ready; only within `running`."""
        assert self._hello is not None  # noqa: S101 - `running` sets it
        return self._hello

    @property
    def waiting(self) -> int:
        """The number of requests that wait for answers."""
        return len(self._waiting)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep a process alive while the context lasts. If its first start fails, raises ModelLoadError or the class's `lost`."""
        keeping = asyncio.create_task(self._keep())
        try:
            if self._hello is None:
                self._is_wanted.set()
                await self._first.wait()
                if self._refused:
                    raise ModelLoadError(self._refused)
                if not self._is_ready.is_set():
                    raise self._lost(f"The {self._who}'s process ended at its start.")
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    @asynccontextmanager
    async def request(
        self, question: Callable[[int], msgspec.Struct], *, lost: str
    ) -> AsyncIterator[PendingRequest]:
        """Send a request; its work ends with the context. `question`: makes the message from the request's number.

        `lost`: the error's text if the process ends meanwhile. Raises the class's `lost`.
        """
        process = await self._process()
        pending = PendingRequest(next(self._numbers), process, self._lost(lost))
        self._waiting[pending.number] = pending
        process.send(question(pending.number))
        try:
            yield pending
        finally:
            del self._waiting[pending.number]
            process.send(Cancel(pending.number))

    async def _process(self) -> Child:
        """Return the running process. Raises the class's `lost`, at once if the process refused at its last start."""
        self._is_wanted.set()
        if self._refused:
            raise self._lost(self._refused)
        try:
            async with asyncio.timeout(START_S):
                await self._is_ready.wait()
        except TimeoutError:
            raise self._lost(f"The {self._who} is not ready yet. Try again in a moment.") from None
        if self._refused:
            raise self._lost(self._refused)
        assert self._child is not None  # noqa: S101 - `_is_ready` says so
        return self._child

    async def _keep(self) -> None:
        await self._is_wanted.wait()
        while True:
            try:
                async with running_child(*self._command) as self._child:
                    await self._read(self._child)
            except OSError as error:
                log.warning("the %s's process could not be started: %s", self._who, error)
            finally:
                self._lose()
            log.warning("the %s's process ended; it may be started again in %.1f s", self._who, self._pause_s)
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
                    log.warning("the %s's process does not answer and is ended", self._who)
                    return
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _silent_since(self, now: float) -> float:
        """Return when the process last sent something or an answer fell due, whichever is later; `now` if no answer is due."""
        due = [pending.due_since for pending in self._waiting.values() if pending.due_since is not None]
        return max(self._received_at, min(due, default=now))

    async def _take_all(self, process: Child) -> None:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(self._kinds)
        async for body in process.bodies():
            self._received_at = asyncio.get_running_loop().time()
            self._take(decoder.decode(body))

    def _take(self, message: Any) -> None:
        if isinstance(message, self._hello_type):
            self._hello, self._refused = message, ""
            self._is_ready.set()
            self._first.set()
        elif isinstance(message, Refused):
            self._refused = message.why
            self._is_ready.set()  # it refused: nobody needs to wait any longer
            log.error("the %s's process can't serve: %s", self._who, message.why)
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


class PendingRequest:
    """A request to a process, and its answers. `due_since`: when the next answer fell due; None: none is due."""

    def __init__(self, number: int, process: Child, lost: SpeechError) -> None:
        self.number = number
        self.answers: asyncio.Queue[Any] = asyncio.Queue()
        self.due_since: float | None = asyncio.get_running_loop().time()
        self._process = process
        self._lost = lost

    def send(self, message: msgspec.Struct) -> None:
        """Send another message about the request."""
        self._process.send(message)

    def set_answer_due(self, *, is_owed: bool) -> None:
        """Set whether an answer is due: a process that does not answer is ended after a while."""
        if not is_owed:
            self.due_since = None
        elif self.due_since is None:
            self.due_since = asyncio.get_running_loop().time()

    async def next(self) -> Any:
        """Return the next answer. Raises the process's `lost`."""
        answer = await self.answers.get()
        if answer is None:
            raise self._lost
        if isinstance(answer, Failed):
            raise type(self._lost)(answer.why)
        return answer


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
async def running_child(*command: str) -> AsyncIterator[Child]:
    """Start a module as a process that ends with the context. Its last argument is the number of its end of the socket.

    `command`: the module and its other arguments.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", *command, str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STDERR,
                env=module_environment(),
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


class Worker(ABC, Generic[T]):
    """The process's loop over requested works of the type `T`. Subclasses define one step."""

    def __init__(self, channel: Channel, hello: msgspec.Struct) -> None:
        """`hello`: the first message to the gateway."""
        self.channel = channel
        self.queue: FairQueue[T] = FairQueue()
        self._hello = hello
        self._gone: set[int] = set()

    def run(self) -> None:
        """Work until the gateway has ended."""
        self.channel.send(self._hello)
        while True:
            if not self.queue and (message := self.channel.wait(self.timeout_s())) is not None:
                self._receive(message)
            self.catch_up()
            if self.queue:
                self._gone.clear()
                self.step()

    @abstractmethod
    def step(self) -> None:
        """Do a piece of the next work. An exception ends the process."""

    @abstractmethod
    def take(self, message: Any) -> None:
        """Take a request; a `Cancel` is handled before."""

    def timeout_s(self) -> float | None:
        """Return how long to wait if there is nothing to do; None: until the next message."""
        return None

    def catch_up(self) -> None:
        """Take new requests."""
        while (message := self.channel.poll()) is not None:
            self._receive(message)

    def is_gone(self, number: int) -> bool:
        """Between two steps of a model: report that it works; return whether nobody waits for a request any more."""
        self.channel.send(Working())
        self.catch_up()
        return number in self._gone

    def leave(self, number: int) -> None:
        """Note that nobody waits for a request any more."""
        self._gone.add(number)
        self.queue.remove(number)

    def end(self, number: int, last: msgspec.Struct) -> None:
        """Send the last message of a request."""
        self.queue.remove(number)
        self.channel.send(last)

    def fail(self, number: int, error: Exception, what: str) -> None:
        """Fail one request. `what`: such as "This text could not be spoken".

        The error's message stays out of the log: it may quote sound or text.
        """
        print(f"{what}: {type(error).__name__}", file=sys.stderr)  # noqa: T201
        self.end(number, Failed(number, f"{what}."))

    def _receive(self, message: Any) -> None:
        if isinstance(message, Cancel):
            self.leave(message.number)
        else:
            self.take(message)


class Channel:
    """The socket, and messages that were read from it but not taken."""

    def __init__(self, descriptor: int, kinds: Any) -> None:
        """Start to read. `kinds`: the union of the gateway's messages."""
        # A signal for the service's whole group is the gateway's business, which lets replies end.
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._socket = socket.socket(fileno=descriptor)
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(kinds)
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message to the gateway; if that has gone, the process ends."""
        try:
            self._socket.sendall(pack(message))
        except (BrokenPipeError, ConnectionResetError):
            sys.exit(0)

    def wait(self, timeout_s: float | None = None) -> Any | None:
        """Return the next message, once there is one; None if none comes in time."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except Empty:
            return None

    def poll(self) -> Any | None:
        """Return the next message, or None."""
        try:
            return self._inbox.get_nowait()
        except Empty:
            return None

    def _read(self) -> None:
        """Read in parallel with the work, so that the gateway never waits; end the process with the gateway."""
        with self._socket.makefile("rb") as stream:
            while len(head := stream.read(LENGTH.size)) == LENGTH.size:
                self._inbox.put(self._decoder.decode(stream.read(LENGTH.unpack(head)[0])))
        os._exit(0)


class FairQueue(Generic[T]):
    """Numbered works of owners, who take turns."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, dict[int, T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._owners)

    def add(self, owner: str, number: int, work: T) -> None:
        """Add work after its owner's other works."""
        self._owners.setdefault(owner, {})[number] = work

    def next(self) -> tuple[int, T]:
        """Return the next work, and make its owner the last one. The work stays until it is removed."""
        owner = next(iter(self._owners))
        self._owners.move_to_end(owner)
        return next(iter(self._owners[owner].items()))

    def remove(self, number: int) -> None:
        """Remove work, if it is there."""
        for owner, works in list(self._owners.items()):
            works.pop(number, None)
            if not works:
                del self._owners[owner]
