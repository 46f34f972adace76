"""The common messages of the gateway and all processes for sound, and their encoding."""

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
    """Work on a piece, or a step of one, has begun."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A request failed. `why`: for its sender."""

    number: int
    why: str


def pack(message: msgspec.Struct) -> bytes:
    """Return an encoded message: its length in four bytes, big-endian, then msgpack."""
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body
