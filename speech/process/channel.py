"""A process's end of its socket: requests are read beside the work, and the process ends with the gateway."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from speech.process.messages import LENGTH, pack


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
