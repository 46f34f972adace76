"""Messages over a stream socket: each is MessagePack, after its length."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec

_LENGTH = struct.Struct(">I")
_LARGEST_READ = 1 << 18

R = TypeVar("R")


def pack(message: msgspec.Struct) -> bytes:
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


class BlockingChannel(Generic[R]):
    """One end of a socket between two processes: one thread reads, any thread writes."""

    def __init__(self, connection: socket.socket, decoder: msgspec.msgpack.Decoder[R]) -> None:
        """Take a connected stream socket, and the decoder of the messages that arrive."""
        self._connection = connection
        self._decoder = decoder
        self._writing = threading.Lock()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; wait if the other end is late. Raises OSError once it is gone."""
        packed = pack(message)
        with self._writing:
            self._connection.sendall(packed)

    def receive(self) -> Iterator[R]:
        """Yield messages until the other end is closed. Raises OSError if the connection breaks."""
        unpacker = Unpacker()
        while received := self._connection.recv(_LARGEST_READ):
            for body in unpacker.feed(received):
                yield self._decoder.decode(body)
