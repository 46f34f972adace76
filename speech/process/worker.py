"""A process for sound: its end of the socket, the order of its work, and its main loop.

Owners take turns by pieces. Requests are read between steps, and the process ends with the gateway.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import zip_longest
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from speech.process.messages import LENGTH, Cancel, Failed, Working, pack

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Numbered works, each of an owner."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, dict[int, T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._owners)

    def add(self, owner: str, number: int, work: T) -> None:
        """Add work after its owner's other works."""
        self._owners.setdefault(owner, {})[number] = work

    def next(self) -> tuple[int, T]:
        """Return the next work; then its owner is the last one. It stays until it is removed."""
        owner = next(iter(self._owners))
        self._owners.move_to_end(owner)
        return next(iter(self._owners[owner].items()))

    def remove(self, number: int) -> None:
        """Remove work, if it is there."""
        for owner, works in list(self._owners.items()):
            works.pop(number, None)
            if not works:
                del self._owners[owner]

    def several(self, most: int, fits: Callable[[T, T], bool]) -> list[tuple[int, T]]:
        """Return up to `most` works to do together: the next one, and others that fit it.

        Each owner's first work comes before any owner's second. Then the owner of the next work is the last one.
        """
        first = self.next()
        rest = [
            work for works in zip_longest(*(one.items() for one in self._owners.values())) for work in works
        ]
        others = [
            work for work in rest if work is not None and work[0] != first[0] and fits(first[1], work[1])
        ]
        return [first, *others[: most - 1]]


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
        """Read beside the work, so that the gateway never waits; end the process with the gateway."""
        with self._socket.makefile("rb") as stream:
            while len(head := stream.read(LENGTH.size)) == LENGTH.size:
                self._inbox.put(self._decoder.decode(stream.read(LENGTH.unpack(head)[0])))
        os._exit(0)


class Worker(ABC, Generic[T]):
    """Requested works of the type `T`. A kind of process defines one step."""

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

    def watch(self, numbers: Iterable[int]) -> list[bool]:
        """Between two steps of a model: report that it works, and return which of these nobody waits for any more."""
        self.channel.send(Working())
        self.catch_up()
        return [number in self._gone for number in numbers]

    def leave(self, number: int) -> None:
        """Note that nobody waits for it any more."""
        self._gone.add(number)
        self.queue.remove(number)

    def is_gone(self, number: int) -> bool:
        """Return whether it was cancelled since the step began."""
        return number in self._gone

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
