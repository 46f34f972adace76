"""The main loop of a process for sound: owners take turns by pieces; requests are read between steps."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from speech.process.channel import Channel
from speech.process.fair_queue import FairQueue
from speech.process.messages import Cancel, Failed, Working

T = TypeVar("T")


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
