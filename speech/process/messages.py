"""What the gateway and all processes for sound tell each other alike, and how it goes over their socket."""

from __future__ import annotations

import struct

import msgspec

LENGTH = struct.Struct(">I")


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Nobody waits for it any more."""

    number: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The process can't serve, and ends. `why`: for the operator."""

    why: str


class Working(msgspec.Struct, frozen=True, tag=True):
    """The next piece, or the next step of one, is being worked at."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It can't be done. `why`: for its sender."""

    number: int
    why: str


def pack(message: msgspec.Struct) -> bytes:
    """Return a message as it goes over the socket: four bytes of length, big-endian, then msgpack."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
