"""The engine's end of the line to the process that makes prompts. One thread sends and receives; the others leave words.

Whoever leaves a word never waits for the line: a job may have megabytes of images, and the process may read none of them.
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import wait

import msgspec

from engine.prompts.jobs import FromPrompts, RaisePriority, Stop, ToPrompts

_LENGTH = struct.Struct("!i")
"""As `multiprocessing` has it, whose connection is at the other end."""

_SHORTEST_S = 0.001
"""A socket that is given no time at all does not wait, and fails in another way."""

_RINGS = 64


class PromptChannel:
    """A stream socket, and signals: at most a `RaisePriority` and a `Stop` for each job."""

    def __init__(self, end: socket.socket) -> None:
        """Take a connected stream socket."""
        self._end = end
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._signals: deque[Stop | RaisePriority] = deque()
        self._decoder: msgspec.msgpack.Decoder[FromPrompts] = msgspec.msgpack.Decoder(FromPrompts)

    def signal(self, word: Stop | RaisePriority) -> None:
        """Leave a word for the job that is being done: it is sent while its answer is waited for. Never waits."""
        self._signals.append(word)
        with suppress(BlockingIOError):  # who is to be woken has not even heard the last rings
            self._wake_sender.send(b"\0")

    def clear_signals(self) -> None:
        """Drop the words that were not sent yet: their job is done."""
        self._signals.clear()

    def send(self, message: ToPrompts, timeout_s: float) -> None:
        """Send a message. Raises TimeoutError where it is not read in time, OSError where nobody is there."""
        body = msgspec.msgpack.encode(message)
        self._end.settimeout(max(_SHORTEST_S, timeout_s))
        self._end.sendall(_LENGTH.pack(len(body)))
        self._end.sendall(body)

    def receive(self, timeout_s: float) -> FromPrompts:
        """Return the next message, and send the words meanwhile. Raises TimeoutError; EOFError or OSError where nobody is there."""
        until = time.monotonic() + timeout_s
        while True:
            while self._signals:
                self.send(self._signals.popleft(), until - time.monotonic())
            ready = wait([self._end, self._wake_receiver], max(0.0, until - time.monotonic()))
            if self._end in ready:
                (length,) = _LENGTH.unpack(self._read(_LENGTH.size, until))
                return self._decoder.decode(self._read(length, until))
            if not ready:
                raise TimeoutError
            self._wake_receiver.recv(_RINGS)

    def close(self) -> None:
        """Close it."""
        for one in (self._end, self._wake_receiver, self._wake_sender):
            one.close()

    def _read(self, count: int, until: float) -> bytearray:
        read = bytearray(count)
        left = memoryview(read)
        while left:
            self._end.settimeout(max(_SHORTEST_S, until - time.monotonic()))
            received = self._end.recv_into(left)
            if not received:
                raise EOFError
            left = left[received:]
        return read
